"""Run the engine's own loop and scheduler on a virtual clock, with a runner that only says how long a step takes.

Must not know: models, text, HTTP, any scheduling rule; real time only where the scheduler itself is timed.
"""

from hotseat.simulator.arrivals import Arrival
from hotseat.simulator.calibration import LearnedCost, StepLog, calibrate
from hotseat.simulator.config import SimulateOptions
from hotseat.simulator.runner import SimulatedRunner
from hotseat.simulator.simulation import Simulation
from hotseat.simulator.step_cost import StepCost
from hotseat.simulator.summary import Slo, Summary
from hotseat.simulator.trace_files import read_arrivals

__all__ = [
    "Arrival",
    "LearnedCost",
    "SimulateOptions",
    "SimulatedRunner",
    "Simulation",
    "Slo",
    "StepCost",
    "StepLog",
    "Summary",
    "calibrate",
    "read_arrivals",
]
