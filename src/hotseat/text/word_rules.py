"""The rules by which byte-level tokenizers split a text into words before merging.

A GGUF file carries only the rule's name, ``tokenizer.ggml.pre``. The expressions here are those of the models' own
tokenizer.json where it is known, with llama.cpp's names for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokenizers import Regex, pre_tokenizers

__all__ = ["WORD_RULES", "WordRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordRule:
    """One way to split text into words.

    The text is split by each of ``patterns`` in turn: a match is a piece of its own, and so is what lies between
    matches; the next pattern splits the pieces further.
    """

    patterns: tuple[str, ...]
    nfc: bool = False  # Unicode NFC first
    ignores_merges: bool = False  # a word that is a token is taken whole
    adds_bos: bool = False
    degraded: bool = False  # the file does not say the rule, and this one is a guess

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return the rule for the ``tokenizers`` library, with bytes written in GPT-2's alphabet at its end."""
        *first, last = self.patterns
        steps = [_split(pattern) for pattern in first]
        if last != GPT2:  # the library has that one built in, and faster
            steps.append(_split(last))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=last == GPT2))
        return pre_tokenizers.Sequence(steps)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern in (_DIGIT, _DIGITS):
        return pre_tokenizers.Digits(individual_digits=pattern == _DIGIT)
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


_DIGIT, _DIGITS = r"\p{N}", r"\p{N}+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _cl100k(digits: str, *, letters: str = r"\p{L}+", others: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    """Return the expression of GPT-4, of which many families changed the digits or the letters."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{others}|{_SPACES}"


def _cased(digits: str, *, contraction: str = "", but: str = "", newlines: str = r"[\r\n/]*") -> str:
    """Return the expression of GPT-4o, which cuts words where lower case turns into upper case."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    opening = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{opening}{upper}*{lower}+{contraction}|{opening}{upper}+{lower}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{newlines}|{_SPACES}"
    )


_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The letters with a case, as DeepSeek's first tokenizer lists them.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_PUNCTUATION = r"[\p{P}$+<=>^~|`]+"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_GPT2 = WordRule(patterns=(GPT2,))
_GPT2_NFC = replace(_GPT2, nfc=True)
_SINGLE_DIGITS = WordRule(patterns=(_DIGIT, GPT2))
_CL100K = WordRule(patterns=(_cl100k(r"\p{N}{1,3}"),))
_LLAMA3 = replace(_CL100K, ignores_merges=True, adds_bos=True)
_QWEN2 = WordRule(patterns=(_cl100k(_DIGIT),))
_O200K = WordRule(patterns=(_cased(r"\p{N}{1,3}", contraction=f"{_CONTRACTION}?"),))
_DEEPSEEK_V3 = WordRule(patterns=(r"\p{N}{1,3}", _CJK, _DEEPSEEK_WORDS))
_BAILING = WordRule(
    patterns=(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_NOT_PUNCTUATION = r" ?[^(\s|.,!?…。，、।۔،)]+"

# Converters write "default", or nothing, where they do not know the tokenizer.
_UNKNOWN = WordRule(patterns=(r"[\p{P}$+<=>^~|]+", GPT2, _DIGITS, "[0-9][0-9][0-9]"), degraded=True)

_GROUPS: tuple[tuple[str, WordRule], ...] = (
    ("default", _UNKNOWN),
    ("gpt-2 phi-2 exaone4 gigachat a.x-4.0 mellum jais trillion granite-docling", _GPT2),
    ("mpt olmo", _GPT2_NFC),
    ("smollm starcoder refact codeshell exaone minerva-7b mellum2", _SINGLE_DIGITS),
    ("command-r", replace(_SINGLE_DIGITS, nfc=True)),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", _LLAMA3),
    ("dbrx smaug-bpe chatglm-bpe", _CL100K),
    ("glm4 glm5", replace(_CL100K, ignores_merges=True)),
    ("qwen2 deepseek-r1-qwen", replace(_QWEN2, nfc=True)),
    ("stablelm2 hunyuan solar-open megrez kormo grok-2", _QWEN2),
    (
        "qwen35",
        # The model's own tokenizer.json has NFC; the ids that llama.cpp expects of this name are without.
        WordRule(patterns=(_cl100k(_DIGIT, letters=r"[\p{L}\p{M}]+", others=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
    ),
    ("tekken", WordRule(patterns=(_cased(_DIGIT),), ignores_merges=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _O200K),
    (
        "kimi-k2",
        WordRule(
            patterns=(
                r"[\p{Han}]+|"
                + _cased(r"\p{N}{1,3}", contraction=f"{_CONTRACTION}?", but=r"&&[^\p{Han}]", newlines=r"[\r\n]*"),
            )
        ),
    ),
    ("tiny_aya cohere2moe", WordRule(patterns=(r"\d{1,3}(?=(?:\d{3})*\b)", *_O200K.patterns))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK_V3),
    (
        "deepseek-llm",
        WordRule(
            patterns=(
                r"[\r\n]",
                rf"\s?[{_CASED_LETTERS}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _EAST_ASIAN,
                _DIGITS,
            )
        ),
    ),
    ("deepseek-coder", WordRule(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT))),
    ("falcon", WordRule(patterns=(_PUNCTUATION, GPT2, "[0-9][0-9][0-9]"))),
    ("seed-coder", WordRule(patterns=(_cl100k(_DIGIT, others=r" ?[^\s\p{L}\p{N}\r\n]+"),))),
    ("bailingmoe bailingmoe2 llada-moe", _BAILING),
    ("minicpm5", WordRule(patterns=(r"\p{N}{1,3}", _cl100k(_DIGITS)), ignores_merges=True)),
    ("bloom poro-chat gpt3-finnish", WordRule(patterns=(_NOT_PUNCTUATION,))),
    ("viking", WordRule(patterns=(_NOT_PUNCTUATION, _DIGIT))),
)
WORD_RULES = {name: rule for names, rule in _GROUPS for name in names.split()}
