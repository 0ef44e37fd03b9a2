"""Guesses how answers go on, without a model: from the request's own text, and from recent answers.

Must not know: how guesses are verified, what they cost (``core.speculation``), models, HTTP.
"""

from hotseat.speculation.config import SpeculationOptions, SpeculativeConfig
from hotseat.speculation.drafters import NgramDrafter, SuffixDrafter
from hotseat.speculation.user import UserDrafter

__all__ = ["NgramDrafter", "SpeculationOptions", "SpeculativeConfig", "SuffixDrafter", "UserDrafter"]
