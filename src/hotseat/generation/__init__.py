"""Generation of text: tokenize and check prompts, run their sequences, detokenize, cut at stop strings.

Must not know: HTTP, models' weights, seats, blocks, how a batch is formed.
"""

from hotseat.generation.embeddings import embedding_of
from hotseat.generation.generator import Generator
from hotseat.generation.offline import OfflineGenerator
from hotseat.generation.prompts import ModelLimits, PromptRequest
from hotseat.generation.sequence import OutputDelta, SequenceOutput
from hotseat.generation.stages import RequestTimes

__all__ = [
    "Generator",
    "ModelLimits",
    "OfflineGenerator",
    "OutputDelta",
    "PromptRequest",
    "RequestTimes",
    "SequenceOutput",
    "embedding_of",
]
