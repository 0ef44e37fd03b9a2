"""What a newcomer ran into on the command line, each with its way out."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotseat import cli
from hotseat.server.port_holder import port_holder
from tiny_models import write_tiny_hf_model


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this very process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.startswith("hotseat: error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["./missing.gguf"], "there is no file or directory ./missing.gguf"),
        (["pyproject.toml"], "pyproject.toml is not a GGUF file"),
        (["src"], "src has neither a config.json nor a GGUF file"),
        (["--scheduling-policy", "foo"], "scheduling_policy must be fcfs"),
        (["--max-num-seqs", "0"], "max_num_seqs must be at least 1"),
        (["--threads", "0"], "threads must be"),
        (["--kv-cache-dtype", "fp8"], "invalid choice: 'fp8'"),
        (["--tensor-parallel-size", "2"], "tensor_parallel_size = 2 is not supported"),
    ],
)
def test_options_and_model_are_checked_before_the_port(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    taken: int,
    words: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    assert complaint in fails(capsys, "serve", *words, "--port", str(taken))


def test_who_holds_the_port_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path, taken: int) -> None:
    model = write_tiny_hf_model(tmp_path / "tiny")
    error = fails(capsys, "serve", str(model), "--runner", "reference", "--port", str(taken))
    assert f"port {taken}: Address already in use by process {os.getpid()} (" in error


def test_nobody_is_said_of_a_free_port(tmp_path: Path) -> None:
    assert port_holder(1) == ""
    assert port_holder(1, proc=tmp_path) == ""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("port: 1\nmax-num-seqs: three\n", "line 2: max_num_seqs must be an integer, not 'three'"),
        ("port: 1\n\ncolour: red\n", "line 3: unknown option colour"),
        ("port: 1\nport: 2\n", "line 2: port is in the file twice"),
        ("port: 1\n  - x: [\n", "line 2: this is not YAML"),
    ],
)
def test_a_mistake_in_a_file_has_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, complaint: str
) -> None:
    path = tmp_path / "hotseat.yaml"
    path.write_text(content)
    assert f"{path}, {complaint}" in fails(capsys, "serve", "--config", str(path))


def test_a_file_may_say_no_as_the_flag_does(tmp_path: Path) -> None:
    from hotseat.core.config import SchedulerConfig
    from hotseat.options import collect, from_file

    path = tmp_path / "hotseat.yaml"
    path.write_text("no-enable-prefix-caching: true\n")
    assert from_file(collect(("scheduler", SchedulerConfig)), str(path)) == {"enable_prefix_caching": False}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "generate", "chat"])
def test_help_is_short_and_names_the_rest(capsys: pytest.CaptureFixture[str], command: str) -> None:
    short, whole = shown(capsys, command, "--help"), shown(capsys, command, "--help-all")
    assert len(short.splitlines()) < 60
    assert "--help-all lists all " in short
    assert len(whole.splitlines()) > 2 * len(short.splitlines())
    assert "gpu-memory-utilization" not in whole


def test_generate_shows_its_own_options_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-tokens" in shown(capsys, "generate", "--help")
    assert "--chat-template" not in shown(capsys, "pull", "--help-all")


def test_a_switch_that_is_off_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "serve", "--help-all")
    assert "--no-disable-log-stats" not in text
    assert "--enable-prefix-caching, --no-enable-prefix-caching" in text


def test_levels_may_be_large_letters(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no file" in fails(capsys, "serve", "./missing.gguf", "--log-level", "INFO")


def test_too_little_memory_is_one_line_with_sizes(tmp_path: Path) -> None:
    model = write_tiny_hf_model(tmp_path / "tiny")
    code = (
        "import resource, sys; from hotseat import cli;"
        "import hotseat.wiring, hotseat.llm, numpy;"
        "pages = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (pages + (64 << 20), -1));"
        f"sys.exit(cli.main(['generate', {str(model)!r}, 'a', '--runner', 'reference',"
        " '--kv-cache-memory-bytes', '1GiB']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "1GiB is a KV cache of 1024 MiB, but" in done.stderr
    assert "MiB of memory are free" in done.stderr


def test_an_allocation_that_fails_says_what_to_lower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object) -> int:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr("hotseat.cli.dispatch._dispatch", fail)
    assert "lower --kv-cache-memory-bytes" in fails(capsys, "serve")


def test_this_process_has_no_limit_of_its_own() -> None:
    from hotseat.machine import free_memory

    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert "ulimit" not in str(free_memory())
