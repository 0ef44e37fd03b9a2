"""The arrows between rooms: the contracts of the import linter, the map in ARCHITECTURE.md and the imports agree."""

import re
import shutil
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hotseat"
# What is imported everywhere, and the entry points that import one thing each.
FREE = {"errors", "__init__"}
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {
    path.stem for path in PACKAGE.glob("*.py")
} - FREE
Arrows = dict[str, set[str]]  # room -> the rooms that it imports


def contracts() -> list[dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def room_of(module: str) -> str:
    return f"{module}.__init__".split(".")[1]


def allowed_arrows() -> Arrows:
    """Return what the contracts allow."""
    arrows: Arrows = {room: set() for room in ROOMS}
    for contract in contracts():
        if contract["type"] == "protected":
            (protected,) = contract["protected_modules"]
            for importer in contract["allowed_importers"]:
                arrows[room_of(importer)].add(room_of(protected))
    return arrows


def drawn_arrows() -> Arrows:
    """Return what the map shows: rows of a room in backticks, its duty, and the rooms that it imports."""
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| [^|]+ \|([^|]*)\|$", map_of_the_package(), re.MULTILINE)
    return {room: set(re.findall(r"\w+", imports)) for room, imports in rows}


def map_of_the_package() -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return text[text.index("## Code map") : text.index("`csrc/` is")]


def actual_arrows() -> Arrows:
    graph = grimp.build_graph("hotseat", cache_dir=None)
    arrows: Arrows = {room: set() for room in ROOMS}
    for module in graph.modules:
        room = room_of(module)
        if room in ROOMS:
            imported = {room_of(other) for other in graph.find_modules_directly_imported_by(module)}
            arrows[room] |= imported - FREE - {room}
    return arrows


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the import linter on the package below ``folder`` / src."""
    command = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=folder, env={"PYTHONPATH": "src"}, capture_output=True, text=True
    )


def test_every_import_obeys_the_contracts() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "kept" in result.stdout


def test_every_room_has_its_contract() -> None:
    protected = {room_of(module) for contract in contracts() for module in contract.get("protected_modules", ())}
    assert protected == ROOMS - {"__main__"}, "who may import the room? Say it in pyproject.toml"


def test_the_contracts_allow_no_arrow_that_is_not_used() -> None:
    assert allowed_arrows() == actual_arrows()


def test_arrows_point_one_way() -> None:
    TopologicalSorter(allowed_arrows()).prepare()  # raises CycleError for a circle


def test_the_map_shows_every_room_and_the_arrows_that_the_contracts_allow() -> None:
    drawn = drawn_arrows()
    assert drawn.pop("errors") == set()
    allowed = allowed_arrows()
    assert allowed.pop("__main__") == {"cli"}
    assert drawn == allowed


def seeded_copy(folder: Path, forbidden: set[tuple[str, str]]) -> None:
    """Copy the package and its contracts below another name, with one import inside a function for each pair."""
    package = folder / "src" / "seeded"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__pycache__", "static"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for importer, imported in forbidden:
        home = package / importer
        file = home / f"arrow_to_{imported}.py" if home.is_dir() else home.with_suffix(".py")
        with file.open("a") as stream:
            stream.write(f"\n\ndef arrow_to_{imported}():\n    import hotseat.{imported}\n")
    for path in (folder / "pyproject.toml", *package.rglob("*.py")):
        path.write_text(re.sub(r"\bhotseat\b", "seeded", path.read_text()))


def test_every_arrow_that_is_not_allowed_is_caught(tmp_path: Path) -> None:
    allowed = allowed_arrows()
    forbidden = {
        (importer, imported)
        for importer in ROOMS - {"__main__"}
        for imported in ROOMS - {"__main__", importer}
        if imported not in allowed[importer]
    }
    assert len(forbidden) > 100
    seeded_copy(tmp_path, forbidden)
    result = lint(tmp_path)
    assert result.returncode == 1, result.stderr
    found = re.findall(r"(seeded\.[\w.]+) -> (seeded\.[\w.]+)", result.stdout)
    assert forbidden - {(room_of(importer), room_of(imported)) for importer, imported in found} == set()


@pytest.mark.parametrize("module", ["numpy", "time", "threading", "asyncio", "os", "random"])
def test_core_knows_no_clock_thread_array_or_randomness(module: str) -> None:
    graph = grimp.build_graph("hotseat", cache_dir=None, include_external_packages=True)
    assert module not in graph.modules or not graph.chain_exists("hotseat.core", module, as_packages=True)
