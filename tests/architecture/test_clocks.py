"""Deadlines and waits go by a clock that is never set."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "hotseat"
WALL_CLOCK = re.compile(r"\btime\.time\(|\btime_ns\(|datetime\.(now|utcnow|today)\(|CLOCK_REALTIME")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_wall_clock_is_shown_and_never_reckoned_with(path: Path) -> None:
    for line in path.read_text().splitlines():
        # A whole number of seconds since 1970 is a date for a client to read.
        assert not WALL_CLOCK.search(line.replace("int(time.time())", "")), line.strip()
