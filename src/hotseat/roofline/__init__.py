"""Measure kernels and whole steps on this machine, and how close to its limits they come.

Must not know: text, HTTP, the event loop, how a server is wired.
"""

from hotseat.roofline.command import COMMANDS, RooflineCommand
from hotseat.roofline.config import KernelBenchOptions, StepBenchOptions

__all__ = ["COMMANDS", "KernelBenchOptions", "RooflineCommand", "StepBenchOptions"]
