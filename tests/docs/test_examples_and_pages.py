"""Examples run, files for deployment name what there is, pages for operators name metrics that are exported."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from hotseat.cli.commands import COMMANDS
from hotseat.options import command_line
from server.processes import Process
from tiny_models import write_tiny_hf_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "num_lines"), [("offline", 2), ("port_from_vllm", 3)])
def test_an_example_in_one_process_runs(
    name: str, num_lines: int, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load(name).main(model)
    assert len(capsys.readouterr().out.splitlines()) == num_lines


def test_the_example_of_a_client_reads_a_stream(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    server = Process("hotseat", "serve", model, "--port", "0", "--runner", "reference")
    try:
        load("stream").main(server.url)
    finally:
        server.kill()
    assert capsys.readouterr().out.strip()


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {"offline", "port_from_vllm", "stream"}


def known_metrics() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"`((?:vllm|hotseat):[a-z_]+)", text))


@pytest.mark.parametrize("file", ["docs/operations.md", "deploy/alerts.yaml"])
def test_metrics_of_operators_are_those_of_the_list(file: str) -> None:
    named = set(re.findall(r"(?:vllm|hotseat):[a-z_]+[a-z]", (ROOT / file).read_text(encoding="utf-8")))
    known = known_metrics() | {"vllm:prefix_cache_hits_total"}
    assert {name.removesuffix("_bucket") for name in named} <= known
    assert len(named) >= 5


def test_alerts_have_an_expression_and_say_what_to_do() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["expr"]
        assert rule["annotations"]["summary"].endswith(".")


def test_the_unit_and_the_container_start_a_command_that_there_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "hotseat.service")
    _, name, *words = shlex.split(unit["Service"]["ExecStart"])
    assert (name, words) == ("serve", ["--config", "/etc/hotseat.yaml"])
    lines = (ROOT / "deploy" / "Containerfile").read_text().splitlines()
    command = yaml.safe_load(next(line.removeprefix("CMD ") for line in lines if line.startswith("CMD ")))
    assert command_line.read("serve", "", COMMANDS["serve"].known(), command[1:], {}) == {"host": "0.0.0.0"}


def test_every_page_is_in_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {page for page in pages if page not in text} == set()
