"""Print how big each room is, and fail when a file or a Python function has outgrown its limit.

A function may be longer than the limit when its ``def`` line, or the line above, says why: ``# long: <reason>``.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder of sources."""

    folder: str
    suffixes: frozenset[str]


PYTHON, CPP = frozenset({".py"}), frozenset({".h", ".hpp", ".cc", ".cpp"})
TREES = [
    Tree("src/hotseat", PYTHON),
    Tree("csrc", CPP),
    Tree("tests", PYTHON),
    Tree("benchmarks", PYTHON),
    Tree("tools", PYTHON),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    where: str
    num_lines: int
    excused: bool


def room_of(path: Path, top: Path) -> str:
    relative = path.relative_to(top)
    return relative.parts[0] if len(relative.parts) > 1 else "."


def functions_of(path: Path) -> Iterator[Function]:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            near = lines[max(0, node.lineno - 2) : node.body[0].lineno]
            yield Function(
                where=f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                num_lines=(node.end_lineno or node.lineno) - node.lineno + 1,
                excused=any("# long: " in line for line in near),
            )


def complaints_of(path: Path, *, with_functions: bool) -> Iterator[str]:
    """Yield what is too long in a file."""
    size = len(path.read_text(encoding="utf-8").splitlines())
    if size > MAX_FILE_LINES:
        yield f"{path.relative_to(ROOT)} has {size} lines (limit {MAX_FILE_LINES})"
    if with_functions:
        for function in functions_of(path):
            if function.num_lines > MAX_FUNCTION_LINES and not function.excused:
                yield f"{function.where} has {function.num_lines} lines (limit {MAX_FUNCTION_LINES})"


def files_of(tree: Tree) -> list[Path]:
    return sorted(path for path in (ROOT / tree.folder).rglob("*") if path.suffix in tree.suffixes)


def all_complaints() -> list[str]:
    return [
        complaint
        for tree in TREES
        for path in files_of(tree)
        for complaint in complaints_of(path, with_functions=".py" in tree.suffixes)
    ]


def print_rooms(tree: Tree) -> None:
    """Print one line for each room of ``tree``."""
    top = ROOT / tree.folder
    rooms: dict[str, list[Path]] = {}
    for path in files_of(tree):
        rooms.setdefault(room_of(path, top), []).append(path)
    out = sys.stdout
    out.write(f"{tree.folder:<16}{'files':>7}{'lines':>8}{'largest':>9}{'functions':>11}{'median':>8}{'longest':>9}\n")
    for room, paths in sorted(rooms.items()):
        sizes = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
        row = f"{room:<16}{len(paths):>7}{sum(sizes):>8}{max(sizes):>9}"
        if ".py" in tree.suffixes:
            lengths = [function.num_lines for path in paths for function in functions_of(path)] or [0]
            row += f"{len(lengths):>11}{statistics.median(lengths):>8.0f}{max(lengths):>9}"
        out.write(row + "\n")
    out.write("\n")


def main() -> int:
    for tree in TREES:
        print_rooms(tree)
    complaints = all_complaints()
    for complaint in complaints:
        sys.stdout.write(f"too long: {complaint}\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
