"""Print how big each room is, and fail when a Python file or function of the package has outgrown its limit.

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
CPP_SUFFIXES = {".h", ".hpp", ".cc", ".cpp"}


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


def print_rooms(title: str, top: Path, suffixes: set[str], *, with_functions: bool) -> list[str]:
    """Print one line for each room below ``top``; return what is too long."""
    complaints: list[str] = []
    rooms: dict[str, list[Path]] = {}
    for path in sorted(top.rglob("*")):
        if path.suffix in suffixes:
            rooms.setdefault(room_of(path, top), []).append(path)
    out = sys.stdout
    out.write(f"{title:<16}{'files':>7}{'lines':>8}{'largest':>9}{'functions':>11}{'median':>8}{'longest':>9}\n")
    for room, paths in sorted(rooms.items()):
        sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
        row = f"{room:<16}{len(paths):>7}{sum(sizes.values()):>8}{max(sizes.values()):>9}"
        if with_functions:
            functions = [function for path in paths for function in functions_of(path)]
            lengths = [function.num_lines for function in functions] or [0]
            row += f"{len(functions):>11}{statistics.median(lengths):>8.0f}{max(lengths):>9}"
            complaints += [
                f"{function.where} has {function.num_lines} lines (limit {MAX_FUNCTION_LINES})"
                for function in functions
                if function.num_lines > MAX_FUNCTION_LINES and not function.excused
            ]
            complaints += [
                f"{path.relative_to(ROOT)} has {size} lines (limit {MAX_FILE_LINES})"
                for path, size in sizes.items()
                if size > MAX_FILE_LINES
            ]
        out.write(row + "\n")
    return complaints


def main() -> int:
    complaints = print_rooms("src/hotseat", ROOT / "src" / "hotseat", {".py"}, with_functions=True)
    for title, folder, suffixes in [("csrc", "csrc", CPP_SUFFIXES), ("tests", "tests", {".py"})]:
        sys.stdout.write("\n")
        print_rooms(title, ROOT / folder, suffixes, with_functions=False)
    for complaint in complaints:
        sys.stdout.write(f"too long: {complaint}\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
