"""Turn what happens in the engine into numbers, records and log lines.

Must not know: who decides, what computes, how anything is served; it only listens.
"""

from hotseat.telemetry.exposition import Exposition
from hotseat.telemetry.line_file import LineFile
from hotseat.telemetry.metrics import EngineMetrics
from hotseat.telemetry.records import RecordWriter, record_as_dict
from hotseat.telemetry.request_log import RequestLog
from hotseat.telemetry.request_writer import RequestWriter
from hotseat.telemetry.stats_log import StatsLog

__all__ = [
    "EngineMetrics",
    "Exposition",
    "LineFile",
    "RecordWriter",
    "RequestLog",
    "RequestWriter",
    "StatsLog",
    "record_as_dict",
]
