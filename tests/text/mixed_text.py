"""A text with a bit of everything that a tokenizer can stumble over."""

from __future__ import annotations

import random

ENGLISH = (
    "It wasn't the first time she'd asked; they'll say \"no\" again, won't they? Prices rose 12.5% to $1,234.56 in Q3. "
    "E-mail me@example.org or see https://example.org/a_b?c=1&d=%20#top — it's 100% free…"
)
GERMAN = "Fünf große Straßenbahnen fuhren über die Brücke; »Ärgerlich!«, rief Jürgen. Donaudampfschifffahrt."
CHINESE = "今天天气如何？客单价是一百二十三元。他说：“明天见！”《红楼梦》第３回"
JAPANESE = "これはテストです。カタカナとひらがな、漢字も混ざっています。ｱｲｳ １２３"
ARABIC = "مرحبا بالعالم، كيف حالك اليوم؟ ١٢٣٤ — الْعَرَبِيَّةُ"
OTHERS = "Привет, мир! Ελληνικά; עברית; हिन्दी में; ภาษาไทย; 한국어 문장; Tiếng Việt; ქართული; አማርኛ; ᚠᛇᚻ"
EMOJI = "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️‍🔥 🌶️ 😀😃 ©®™ ½ ² Ⅷ ④"
CODE = (
    'def f(x: int) -> str:\n    """Doc."""\n    return f\'{x:>08.3f}\' if x != 0x1F else "\\n"\n\n\n'
    '\tfor (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }  // end\r\n<div class="x">&nbsp;</div>\n{"k": [1, null, true]}'
)
SPACES = "a  b   c    d\te\t\tf\n\n\ng\r\nh\u00a0i\u2003j\u3000k\u200bl \n \n  m   1 2  3   456\n 7"
CONTROL = "".join(map(chr, range(32))) + "\x7f\x80\x9f\ufeff\u202e\u2028\u2029\ufffd\uffff"
COMBINING = "e\u0301 vs \u00e9, a\u0308\u0323, n\u0303o, \u1112\u1161\u11ab, z\u0351\u036b\u0343a\u0322lgo"
SPECIAL = "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <|im_start|><|im_end|>x<jupyter_code>y<|im_end| <repo_name>a"
DIGITS = "1 12 123 1234 12345 0.1 1e-9 ١٢٣ १२३ ¹²³ ½¾ Ⅻ 3rd 2nd a1b2c3 007 1,000,000"

PARTS = (ENGLISH, GERMAN, CHINESE, JAPANESE, ARABIC, OTHERS, EMOJI, CODE, SPACES, CONTROL, COMBINING, SPECIAL, DIGITS)


def mixed_texts() -> list[str]:
    """The parts, and 300 shuffles of pieces of them: what meets at a seam is where tokenizers differ."""
    rng = random.Random(7)
    texts = list(PARTS)
    for _ in range(300):
        pieces = []
        for _ in range(rng.randint(2, 12)):
            part = rng.choice(PARTS)
            start = rng.randrange(len(part))
            pieces.append(part[start : start + rng.randint(1, 40)])
        texts.append("".join(pieces))
    texts.append("\n".join(PARTS) * 3)
    return texts
