"""The command line up to the point where a room takes over; test_end_to_end.py goes further."""

import subprocess
import sys
from pathlib import Path

import pytest

from hotseat import cli, options
from hotseat.core.config import SchedulerConfig

KNOWN = options.collect(("scheduler", SchedulerConfig))


def read(*words: str, **arguments: str) -> dict[str, object]:
    return cli._read("test", "", KNOWN, list(words), **arguments)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KNOWN:
        monkeypatch.delenv(f"HOTSEAT_{name.upper()}", raising=False)


def test_dashes_and_underscores_are_the_same() -> None:
    assert read("--max-num-seqs", "3") == read("--max_num_seqs=3") == {"max_num_seqs": 3}


def test_values_keep_their_underscores() -> None:
    assert read("--scheduling_policy=my_module:My_Policy") == {"scheduling_policy": "my_module:My_Policy"}


def test_booleans_have_two_flags() -> None:
    assert read("--no-enable-prefix-caching") == {"enable_prefix_caching": False}
    assert read("--enable_prefix_caching") == {"enable_prefix_caching": True}


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hotseat.yaml"
    path.write_text("max-num-seqs: 1\nblock_size: 8\nwatermark: 0.5\n")
    monkeypatch.setenv("HOTSEAT_BLOCK_SIZE", "4")
    monkeypatch.setenv("HOTSEAT_WATERMARK", "0.25")
    assert read("--watermark", "0", "--config", str(path)) == {"max_num_seqs": 1, "block_size": 4, "watermark": 0.0}


def test_the_file_can_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hotseat.yaml"
    path.write_text("max-num-seqs: 1\n")
    monkeypatch.setenv("HOTSEAT_CONFIG", str(path))
    assert read() == {"max_num_seqs": 1}


def run(*words: str) -> tuple[int, str]:
    result = subprocess.run([sys.executable, "-m", "hotseat", *words], capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["srve"], "unknown command 'srve'; did you mean `hotseat serve`?"),
        (["bench"], "did you mean `hotseat bench serve`?"),
        (["serve", "--max-num-sequences", "3"], "unknown option --max-num-sequences; did you mean --max-num-seqs?"),
        (["serve", "--max-num-seqs", "many"], "argument --max-num-seqs: max_num_seqs must be an integer, not 'many'"),
        (["serve", "--port", "70000"], "port must be within 0 and 65535"),
        (["serve", "one", "two"], "unexpected argument 'two'"),
        (["serve", "--max-num-seqs"], "argument --max-num-seqs: expected one argument"),
        (["generate"], "a text is missing"),
        (["bench", "serve", "--num-prompts", "0"], "num_prompts must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words: list[str], message: str) -> None:
    status, output = run(*words)
    assert status == 2
    assert message in output
    assert output.count("\n") == 1, output


def test_a_model_that_is_not_there_is_one_line_and_status_2(tmp_path: Path) -> None:
    status, output = run("generate", "hello", "--model", str(tmp_path / "none.gguf"), "--offline")
    assert status == 2
    assert output.startswith("hotseat: error: ")
    assert output.count("\n") == 1, output


def test_help_lists_the_commands_and_imports_no_room() -> None:
    code = "import sys; from hotseat.cli import main; main(['--help']); print(sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for command in ("serve", "pull", "generate", "chat", "bench serve"):
        assert f"\n  {command} " in output
    for heavy in ("numpy", "fastapi", "yaml", "tqdm", "hotseat.build", "asyncio"):
        assert f"'{heavy}'" not in output


def test_the_version_is_printed() -> None:
    import hotseat

    assert run("--version") == (0, f"hotseat {hotseat.__version__}\n")


@pytest.mark.parametrize("command", [["serve"], ["pull"], ["generate"], ["chat"], ["bench", "serve"]])
def test_every_command_has_help(command: list[str]) -> None:
    status, output = run(*command, "--help")
    assert status == 0
    assert output.startswith(f"usage: hotseat {' '.join(command)}")


def test_every_option_of_serve_says_what_it_is() -> None:
    from hotseat.build import ENGINE_OPTIONS
    from hotseat.server.config import ServerConfig
    from hotseat.serving import ObserverOptions

    for option in (ENGINE_OPTIONS | options.collect(("s", ServerConfig), ("o", ObserverOptions))).values():
        assert option.help, f"{option.flag} has no help"
