import io
import json
import sys

import pytest

from hotseat.simulator import scheduler_bench
from hotseat.simulator.config import SchedulerBenchOptions

OPTIONS = {"running": "2,3", "waiting": "0,5", "num_steps": 2, "num_rounds": 2}
MACHINE = {"cpu": "a CPU", "python": "3"}


def test_each_row_is_printed_as_soon_as_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []

    class Screen(io.StringIO):
        def flush(self) -> None:
            printed.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", screen := Screen())
    assert scheduler_bench.run(SchedulerBenchOptions(**OPTIONS), command="", machine=MACHINE) == 0
    rows = [line.split()[:2] for line in screen.getvalue().splitlines()[3:]]
    assert rows == [["2", "0"], ["2", "5"], ["3", "0"], ["3", "5"]]
    assert [text.count("\n") for text in printed] == [3, 4, 5, 6, 7]


def test_json_has_all_points(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler_bench.run(SchedulerBenchOptions(**OPTIONS, json=True), command="hotseat bench", machine=MACHINE)
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"]) == ("hotseat.bench.scheduler/1", "hotseat bench")
    assert [(point["num_running"], point["num_waiting"]) for point in document["points"]] == [
        (2, 0),
        (2, 5),
        (3, 0),
        (3, 5),
    ]
