"""Limits of size: 400 lines a file, 50 lines a function, wherever code lies."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def size_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size_table", ROOT / "tools" / "size_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["size_table"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_file_and_no_function_is_too_long(size_table: ModuleType) -> None:
    assert size_table.all_complaints() == []


def test_long_files_and_functions_are_found(
    size_table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_table, "ROOT", tmp_path)
    for tree in size_table.TREES:
        suffix = min(tree.suffixes)
        file = tmp_path / tree.folder / f"long{suffix}"
        file.parent.mkdir(parents=True)
        file.write_text("\n" * 350 + "def f():\n" + "    1\n" * 50 if suffix == ".py" else "\n" * 401)
    complaints = size_table.all_complaints()
    assert sum("401 lines (limit 400)" in complaint for complaint in complaints) == 5
    assert sum("f has 51 lines (limit 50)" in complaint for complaint in complaints) == 4
