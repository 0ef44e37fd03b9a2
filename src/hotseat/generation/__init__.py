"""Turn one prompt into streams of text: tokenize, check, run its sequences, detokenize, cut at stop strings.

Must not know: HTTP, models' weights, seats, blocks, how a batch is formed.
"""

from hotseat.generation.generator import Generator
from hotseat.generation.offline import Job, OfflineGenerator
from hotseat.generation.prompts import ModelLimits, RequestOptions
from hotseat.generation.sequence import OutputDelta, SequenceOutput

__all__ = ["Generator", "Job", "ModelLimits", "OfflineGenerator", "OutputDelta", "RequestOptions", "SequenceOutput"]
