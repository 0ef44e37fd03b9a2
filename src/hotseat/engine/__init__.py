"""The engine: the step loop around scheduler and runner, its thread, and the streams that lead out of it.

Must not know: text, HTTP, models, what a token means.
"""

from hotseat.engine.clock import Clock, MonotonicClock, VirtualClock
from hotseat.engine.config import EngineConfig
from hotseat.engine.engine import Engine
from hotseat.engine.health import Health
from hotseat.engine.records import StepRing
from hotseat.engine.step_loop import StepLoop
from hotseat.engine.stream import UpdateStream
from hotseat.engine.warm_up import warm_up

__all__ = [
    "Clock",
    "Engine",
    "EngineConfig",
    "Health",
    "MonotonicClock",
    "StepLoop",
    "StepRing",
    "UpdateStream",
    "VirtualClock",
    "warm_up",
]
