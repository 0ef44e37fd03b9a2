"""Tokenizers, chat templates and stop strings: from chats to token ids, and from token ids to text that can be sent.

Must not know: requests, batches, models' weights, the engine, HTTP.
"""

from __future__ import annotations

from hotseat.text.chat_template import ChatTemplate
from hotseat.text.detokenizer import Detokenizer
from hotseat.text.stop_strings import StopStrings
from hotseat.text.tokenizer import Tokenizer
from hotseat.text.turn_ends import turn_end_ids

__all__ = ["ChatTemplate", "Detokenizer", "StopStrings", "Tokenizer", "turn_end_ids"]
