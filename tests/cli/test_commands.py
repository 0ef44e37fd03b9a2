"""The command line up to the point where a room takes over; tests/wiring/test_server.py goes further."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotseat import LLM, SamplingParams, cli, options
from hotseat.cli.commands import COMMANDS
from hotseat.core.config import SchedulerConfig
from hotseat.options import command_line
from tiny_models import write_tiny_hf_model

KNOWN = options.collect(("scheduler", SchedulerConfig))


def read(*words: str, **arguments: str) -> dict[str, object]:
    return command_line.read("test", "", KNOWN, words, os.environ, **arguments)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOTSEAT_")]:
        monkeypatch.delenv(name)


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["srve"], "unknown command 'srve'; did you mean `hotseat serve`?"),
        (["serve", "--max-num-sequences", "3"], "unknown option --max-num-sequences; did you mean --max-num-seqs?"),
        (["serve", "--max-num-seqs", "many"], "argument --max-num-seqs: max_num_seqs must be an integer, not 'many'"),
        (["serve", "--port", "70000"], "port must be within 0 and 65535"),
        (["serve", "one", "two"], "unexpected argument 'two'"),
        (["serve", "--max-num-seqs"], "argument --max-num-seqs: expected one argument"),
        (["generate"], "a text is missing"),
        (["bench", "serve", "--num-prompts", "0"], "num_prompts must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("hotseat: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1, captured.err
    assert captured.out == ""


def test_the_members_of_a_group_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    listed = capsys.readouterr().out
    for name in ("serve", "scheduler", "kernels", "step"):
        assert f"\n  bench {name} " in listed
    assert "hotseat pull" not in listed
    assert cli.main(["bench", "foo", "--url", "x"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"hotseat: error: unknown command 'bench foo'\n\n{listed}"
    assert captured.out == ""


def warnings_with(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command that soon fails warns of."""
    assert cli.main(list(words)) == 2
    return capsys.readouterr().err.partition("hotseat: error")[0]


def test_a_misspelt_variable_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOTSEAT_MAX_NUM_SEQ", "3")
    monkeypatch.setenv("HOTSEAT_BENCH_NUM_PROMPT", "3")
    warnings_with(capsys, "serve", "--port", "70000")
    assert caplog.messages == [
        "the environment variable HOTSEAT_MAX_NUM_SEQ is no option; did you mean HOTSEAT_MAX_NUM_SEQS?"
    ]
    caplog.clear()
    warnings_with(capsys, "bench", "serve", "--num-prompts", "0")
    assert caplog.messages == [
        "the environment variable HOTSEAT_BENCH_NUM_PROMPT is no option; did you mean HOTSEAT_BENCH_NUM_PROMPTS?"
    ]


def test_variables_of_kubernetes_and_of_other_commands_are_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "8000", "SERVICE_PORT_HTTP": "8000"}
    kubernetes |= {"PORT_8000_TCP": "tcp://10.0.0.1:8000", "PORT_8000_TCP_PORT": "8000", "PORT": "tcp://10.0.0.1:8000"}
    for name, value in kubernetes.items():
        monkeypatch.setenv(f"HOTSEAT_{name}", value)
    others = {other.prefix + name.upper() for other in COMMANDS.values() for name in other.known()}
    for variable in {*others, "HOTSEAT_CACHE_DIR", "HOTSEAT_BENCH_CONFIG", "HOTSEAT_CONFIG"}:
        if variable not in os.environ:
            monkeypatch.setenv(variable, "")
    for words in (["serve", "--port", "70000"], ["explain", "--no"], ["simulate", "--no"], ["generate"]):
        warnings_with(capsys, *words)
    assert caplog.messages == []


def test_a_model_that_is_not_there_is_one_line_and_status_2(tmp_path: Path) -> None:
    words = ["generate", "hello", "--model", str(tmp_path / "none.gguf"), "--offline"]
    result = subprocess.run([sys.executable, "-m", "hotseat", *words], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("hotseat: error: ")
    assert result.stderr.count("\n") == 1, result.stderr


def test_help_lists_the_commands_and_imports_no_room() -> None:
    code = "import sys; from hotseat.cli import main; main(['--help']); print(sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for command in ("serve", "pull", "generate", "chat", "bench serve"):
        assert f"\n  {command} " in output
    for heavy in ("numpy", "fastapi", "yaml", "tqdm", "hotseat.wiring", "asyncio"):
        assert f"'{heavy}'" not in output


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import hotseat

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hotseat {hotseat.__version__}\n"


@pytest.mark.parametrize("command", [["serve"], ["pull"], ["inspect"], ["generate"], ["chat"], ["bench", "serve"]])
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: hotseat {' '.join(command)}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is(name: str) -> None:
    for option in COMMANDS[name].known().values():
        assert option.help, f"{option.flag} has no help"
        assert option.metavar.isupper(), option.metavar


def test_the_help_says_what_kind_of_value_an_option_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help-all"])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("--max-num-seqs N", "--record FILE", "--shutdown-timeout-s SECONDS", "--max-request-bytes BYTES"):
        assert words in text
    assert "--port PORT" in text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny"))


SMALL = ["--runner", "reference", "--max-num-seqs", "1", "--temperature", "0", "--max-tokens", "5"]


def test_generate_writes_the_text_of_a_completion(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "a hot seat", "--model", model, *SMALL]) == 0
    written = capsys.readouterr().out
    with LLM(model, runner="reference") as llm:
        (output,) = llm.generate("a hot seat", SamplingParams(temperature=0, max_tokens=5), use_tqdm=False)
    assert written == output.outputs[0].text + "\n"


def test_generate_reads_standard_input_and_can_ask_as_a_chat(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert cli.main(["generate", "-", "--chat", "--system", "be brief", "--model", model, *SMALL]) == 0
    written = capsys.readouterr().out
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    with LLM(model, runner="reference") as llm:
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=5), use_tqdm=False)
    assert written == output.outputs[0].text + "\n"


def test_chat_answers_line_by_line_until_the_input_ends(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nand again\n"))
    assert cli.main(["chat", model, *SMALL]) == 0
    written = capsys.readouterr().out
    assert written.count("\n") == 2
    assert "> " not in written, "nobody is there to be prompted"


def test_pull_says_where_the_model_is(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", model]) == 0
    assert capsys.readouterr().out == f"{model}\n"


@pytest.mark.parametrize("words", [["--api-key", "s3cret"], ["--api_key=s3cret"], ["--admin-api-key", "s3cret", "-x"]])
def test_a_quoted_command_line_holds_no_key(words: list[str]) -> None:
    line = command_line.quote(["hotseat", "bench", "serve", *words, "--num-prompts", "4"])
    assert "s3cret" not in line
    assert line.endswith("--num-prompts 4")
