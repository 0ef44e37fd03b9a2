"""The type stub of the native extension is the one that the extension generates."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hotseat.runner._native", reason="the extension is not built")

ROOT = Path(__file__).resolve().parents[2]


def test_the_stub_is_that_of_the_extension() -> None:
    command = [sys.executable, "tools/stubs.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
