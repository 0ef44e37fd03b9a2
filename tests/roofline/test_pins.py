"""Threads that are measured stay on CPUs of their own, and nobody else is affected."""

import os
import threading

import pytest

from hotseat.roofline.pins import Pins

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin threads")


class Team:
    """A caller and one other thread, which waits until it may end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.thread = threading.Thread(target=self.may_end.wait)
        self.thread.start()

    @property
    def cpus(self) -> set[int]:
        assert self.thread.native_id is not None
        return os.sched_getaffinity(self.thread.native_id)

    def end(self) -> None:
        self.may_end.set()
        self.thread.join()


def test_each_team_has_its_second_thread_on_the_second_cpu() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    pins = Pins(enabled=True)
    teams = [pins.start(Team) for _ in range(3)]
    try:
        assert [team.cpus for team in teams] == [{allowed[1 % len(allowed)]}] * 3
        with pins.held():
            assert os.sched_getaffinity(0) == {allowed[0]}
        assert sorted(os.sched_getaffinity(0)) == allowed
    finally:
        for team in teams:
            team.end()


def test_nothing_is_pinned_when_it_is_off() -> None:
    allowed = os.sched_getaffinity(0)
    pins = Pins(enabled=False)
    team = pins.start(Team)
    try:
        with pins.held():
            assert os.sched_getaffinity(0) == team.cpus == allowed
    finally:
        team.end()
