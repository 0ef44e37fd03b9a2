"""The table of reports names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_reports_name_exists() -> None:
    names = re.findall(r"`(tests/\S+\.py|…)::(\w+)`", (ROOT / "docs" / "reports.md").read_text(encoding="utf-8"))
    assert len(names) > 15
    file = ""
    for given, name in names:
        file = file if given == "…" else given
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"
