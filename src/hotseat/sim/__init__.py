"""Run the engine's own loop and scheduler on a virtual clock, with a runner that only says how long a step takes.

Must not know: models, text, HTTP, any scheduling rule; real time only where the scheduler itself is timed.
"""

from hotseat.sim.arrivals import Arrival
from hotseat.sim.config import SimulateOptions
from hotseat.sim.runner import SimulatedRunner
from hotseat.sim.simulation import Simulation
from hotseat.sim.step_cost import StepCost
from hotseat.sim.summary import Slo, Summary
from hotseat.sim.trace_files import read_arrivals

__all__ = ["Arrival", "SimulateOptions", "SimulatedRunner", "Simulation", "Slo", "StepCost", "Summary", "read_arrivals"]
