"""Turn chats and prompts into token ids, and token ids into text that can be sent.

Must not know: requests, batches, models' weights, the engine, HTTP.
"""

from __future__ import annotations

from hotseat.text.chat_template import ChatTemplate
from hotseat.text.detokenizer import Detokenizer
from hotseat.text.stop_strings import StopStrings
from hotseat.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopStrings", "Tokenizer"]
