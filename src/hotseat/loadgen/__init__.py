"""Measure an OpenAI-compatible server from outside: load it, time its streams, report.

Must not know: how a server works. It speaks HTTP, so that any server can be measured with it.
"""

from hotseat.loadgen.config import BenchConfig
from hotseat.loadgen.measure import RequestResult, Summary, summarize
from hotseat.loadgen.run import measure, run

__all__ = ["BenchConfig", "RequestResult", "Summary", "measure", "run", "summarize"]
