"""The bytes that every token stands for.

A tokenizer's decoder is a rule over token spellings. For language models three rules are in use, and all of them come
down to "each token is a fixed string of bytes, and a text is the UTF-8 reading of their concatenation"; only the very
start of a text may be special. That is what lets the detokenizer work on bytes, a token at a time:

    byte-level       a token is spelled in GPT-2's alphabet of 256 printable characters, one a byte
    SentencePiece    "▁" is a space, "<0xE2>" is the byte E2, and the first space of a text is dropped
    Metaspace        "▁" is a space, and the ones of the first token are dropped
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hotseat.errors import UnsupportedModelError

__all__ = ["BYTE_ALPHABET", "SPACE_SYMBOL", "TURN_ENDS", "DecodingRule", "TokenBytes", "decoding_rule", "read_utf8"]

SPACE_SYMBOL = "▁"
# Spellings that are control tokens wherever they occur, and end a turn. "</s>" is not here: Gemma 4 has it as text.
TURN_ENDS = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
    *("<end_of_turn>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<turn|>", "<|tool_response>", "<end_of_utterance>"),
    *("<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<｜end▁of▁sentence｜>"),
)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BROKEN_BYTE = re.compile("[\udc80-\udcff]")
_MAX_TOKEN_ID = 2**32 - 1


def _byte_alphabet() -> str:
    """Return GPT-2's spelling of the bytes: printable ones stand for themselves, the rest are moved above U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(moved)) for byte in range(256))


BYTE_ALPHABET = _byte_alphabet()
_BYTE_OF_CHARACTER = codecs.charmap_build(BYTE_ALPHABET)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingRule:
    """A rule by which the spelling of a token becomes bytes.

    ``replacements`` are applied to every token; ``leading_spaces`` is the number of spaces dropped at the start of a
    text; ``first_symbol`` is the space symbol that the first token loses.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    leading_spaces: int = 0
    first_symbol: str | None = None

    @property
    def opens_specially(self) -> bool:
        """Tell whether the start of a text is treated differently from its middle."""
        return self.leading_spaces > 0 or self.first_symbol is not None

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a token spelled ``token`` adds to a text."""
        if self.byte_level:
            try:
                return codecs.charmap_encode(token, "strict", _BYTE_OF_CHARACTER)[0]
            except UnicodeEncodeError:  # an added token, which is spelled as itself
                return token.encode()
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return token.encode()

    def opening_bytes(self, token: str) -> bytes:
        """Return the bytes of ``token`` when it is the first of a text (before leading spaces are dropped)."""
        return self.token_bytes(token if self.first_symbol is None else token.replace(self.first_symbol, ""))


class TokenBytes(dict[int, bytes]):
    """The bytes of each token id, worked out when first asked for; nothing for hidden and unknown ids."""

    __slots__ = ("_added", "_hidden", "_id_to_token", "rule")

    def __init__(
        self,
        id_to_token: Callable[[int], str | None],
        rule: DecodingRule,
        *,
        added: frozenset[int] = frozenset(),
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        """``added`` are the ids of tokens that are looked for in a text as they are spelled, before any other."""
        super().__init__()
        self.rule = rule
        self._id_to_token = id_to_token
        self._added = added
        self._hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:
            return b""  # not kept: there are billions of unknown ids
        piece = self.rule.token_bytes(token)
        if token_id in self._added and not _is_part_of_utf8(piece):
            piece = token.encode()  # an added "ü" is found in a text as it is spelled, and is no byte FC
        self[token_id] = piece
        return piece

    def opening(self, token_id: int) -> bytes:
        """Return the bytes of a token that is the first of a text."""
        token = self._token(token_id)
        return b"" if token is None else self.rule.opening_bytes(token)

    def _token(self, token_id: int) -> str | None:
        if token_id in self._hidden or not 0 <= token_id <= _MAX_TOKEN_ID:
            return None
        return self._id_to_token(token_id)


def _is_part_of_utf8(data: bytes) -> bool:
    """Tell whether ``data`` can be a part of UTF-8 text, possibly from within a character to within one."""
    begun = data.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that began before
    try:
        codecs.utf_8_decode(begun, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def read_utf8(data: bytes, *, byte_level: bool, final: bool) -> tuple[str, int]:
    """Read ``data`` as UTF-8 and return the text and the number of bytes used; unless ``final``, an unfinished
    character at the end is left unread.

    Broken bytes become U+FFFD: in byte-level text one for each maximal part of a character (Unicode's recommendation,
    and what the ``tokenizers`` library does), in SentencePiece text one for each byte (what SentencePiece does).
    """
    if byte_level:
        return codecs.utf_8_decode(data, "replace", final)
    text, used = codecs.utf_8_decode(data, "surrogateescape", final)
    return (text if text.isascii() else _BROKEN_BYTE.sub("\ufffd", text)), used


def decoding_rule(decoder: Mapping[str, object] | None) -> DecodingRule:
    """Read the rule from a decoder as tokenizer.json describes it.

    Raises UnsupportedModelError for a decoder that is not one of the three kinds.
    """
    parts = _parts(decoder)
    kinds = [str(part["type"]) for part in parts]
    if kinds == ["ByteLevel"]:
        return DecodingRule(byte_level=True)
    if kinds == ["Metaspace"]:
        symbol = str(parts[0].get("replacement", SPACE_SYMBOL))
        opens = parts[0].get("prepend_scheme", "always") != "never"
        return DecodingRule(replacements=((symbol, " "),), first_symbol=symbol if opens else None)
    rule = _sentencepiece_rule(parts, kinds)
    if rule is None:
        raise UnsupportedModelError(
            f"the tokenizer's decoder ({' + '.join(kinds) or 'none'}) is not supported; "
            "supported are ByteLevel, Metaspace, and Replace + ByteFallback + Fuse + Strip"
        )
    return rule


def _parts(decoder: Mapping[str, object] | None) -> list[Mapping[str, object]]:
    """Flatten nested sequences of decoders."""
    if decoder is None:
        return []
    if decoder.get("type") != "Sequence":
        return [decoder]
    inner = decoder.get("decoders")
    assert isinstance(inner, list), "a sequence of decoders has a list of them"
    return [part for one in inner for part in _parts(one)]


def _sentencepiece_rule(parts: list[Mapping[str, object]], kinds: list[str]) -> DecodingRule | None:
    """Read Replace, ByteFallback, Fuse, Strip, in this order; ``None`` when they are something else.

    Any other order makes a token's bytes depend on its neighbours.
    """
    order = ("Replace", "ByteFallback", "Fuse", "Strip")
    if not kinds or not set(kinds) <= set(order) or kinds != sorted(kinds, key=order.index):
        return None
    replacements = []
    leading_spaces = 0
    for part in parts:
        if part["type"] == "Replace":
            pattern = part["pattern"]
            if not isinstance(pattern, dict) or "String" not in pattern:
                return None
            replacements.append((str(pattern["String"]), str(part["content"])))
        elif part["type"] == "Strip":
            if part["content"] != " " or part["stop"] != 0 or "Fuse" not in kinds:
                return None
            leading_spaces = int(str(part["start"]))
    return DecodingRule(
        byte_fallback="ByteFallback" in kinds, replacements=tuple(replacements), leading_spaces=leading_spaces
    )
