"""What the import linter cannot say about the shape of the package."""

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hotseat

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hotseat"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
MODULES = sorted(PACKAGE.rglob("*.py"))
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
# Where the process begins: the command line, and LLM, which looks for the cache directory.
READERS_OF_THE_ENVIRONMENT = {"cli/dispatch.py", "llm/offline.py", "llm/async_llm.py"}


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_its_duty_and_its_ignorance(room: str) -> None:
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
    docstring = ast.get_docstring(tree) or ""
    assert docstring.split("\n")[0].endswith((".", ":")), f"{room}/__init__.py opens with one sentence of duty"
    assert "Must not know:" in docstring
    names = [target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    assert "__all__" in names


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_module_has_a_vague_name(path: Path) -> None:
    assert not VAGUE_NAMES & {part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts}


def environment_reads(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in {("sys", "argv"), ("os", "environ"), ("os", "getenv"), ("os", "environb")}:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in ("sys", "os"):
            yield from (name.name for name in node.names if name.name in {"argv", "environ", "getenv"})


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_the_command_line_reads_arguments_and_environment(path: Path) -> None:
    reads = set(environment_reads(ast.parse(path.read_text())))
    if relative(path) in READERS_OF_THE_ENVIRONMENT:
        reads -= {"os.environ"} if relative(path).startswith("llm/") else reads
    assert reads == set()


def test_the_search_for_environment_reads_finds_them() -> None:
    code = "import os, sys\nfrom os import getenv\nx = os.environ['A'], sys.argv[1:]\n"
    assert set(environment_reads(ast.parse(code))) == {"getenv", "os.environ", "sys.argv"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{relative(path)} has no docstring"


def test_importing_the_package_imports_no_room() -> None:
    code = "import sys, hotseat; print([name for name in sys.modules if name.startswith('hotseat.')])"
    result = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_version_of_the_distribution_is_that_of_the_package() -> None:
    assert importlib.metadata.version("hotseat") == hotseat.__version__
