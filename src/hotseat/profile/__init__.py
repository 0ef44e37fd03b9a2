"""Measure kernels and whole steps on this machine, and how close to its limits they come.

Must not know: text, HTTP, the event loop, how a server is wired.
"""

from hotseat.profile.command import COMMANDS, ProfileCommand
from hotseat.profile.config import KernelBenchOptions, StepBenchOptions

__all__ = ["COMMANDS", "KernelBenchOptions", "ProfileCommand", "StepBenchOptions"]
