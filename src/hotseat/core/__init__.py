"""Decide, step by step, which request computes which tokens in which seat and block.

Must not know: clocks, threads, I/O, arrays, models, HTTP.
"""

from hotseat.core.batch import Batch, Chunk, RequestUpdate, Runner, StepOutput
from hotseat.core.config import SchedulerConfig
from hotseat.core.events import SchedulerStats, StepRecord
from hotseat.core.explain import Explanation
from hotseat.core.policy import Policy
from hotseat.core.request import FinishReason, Request, RequestId, RequestStatus, SamplingParams
from hotseat.core.scheduler import Scheduler

__all__ = [
    "Batch",
    "Chunk",
    "Explanation",
    "FinishReason",
    "Policy",
    "Request",
    "RequestId",
    "RequestStatus",
    "RequestUpdate",
    "Runner",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "StepOutput",
    "StepRecord",
]
