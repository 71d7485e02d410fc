"""How the BPE tokenizers of GGUF files cut text before merging: one entry for each value of `tokenizer.ggml.pre`.

A GGUF file does not carry its pre-tokenizer, only its name. Each entry lists regular expressions that are applied one
after another, every match a piece of its own, as the `tokenizer.json` of that family has them (the names are those of
llama.cpp's `src/llama-vocab.cpp`). A name that is not here is refused: a guess would give wrong ids without a sign.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(contraction: str, digits: str) -> str:
    """The o200k pattern: words split where lower case turns to upper."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{contraction}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT4O = _cased(_CONTRACTIONS + "?", r"\p{N}{1,3}")
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_PUNCTUATED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, _PUNCTUATED + r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_HANGUL_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_WORD = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's rules. Byte-level unless `raw`: then tokens hold text as it is, spaces written as "▁" (Gemma 4)."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token as it stands is taken before merging
    add_bos: bool = False  # where the file does not say: whether a raw prompt begins with BOS
    raw: bool = False


_GPT2_RULES = PreTokenizer((_GPT2,))
_DIGIT_RULES = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_RULES = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULES = PreTokenizer((_QWEN2,))
_BAILING_RULES = PreTokenizer(
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
)

_TABLE: dict[tuple[str, ...], PreTokenizer] = {
    ("default",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"): _GPT2_RULES,
    ("mpt", "olmo", "jais", "trillion", "granite-docling"): _GPT2_RULES,
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"): _DIGIT_RULES,
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): _LLAMA3_RULES,
    ("dbrx", "smaug-bpe", "chatglm-bpe"): PreTokenizer((_LLAMA3,)),
    ("glm4", "glm5"): PreTokenizer((_LLAMA3,), ignore_merges=True),
    ("qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"): _QWEN2_RULES,
    ("qwen35",): PreTokenizer((_QWEN35,)),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("tekken",): PreTokenizer((_cased("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    ("tiny_aya", "cohere2moe"): PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    ("deepseek-llm",): PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _HANGUL_HAN,
            r"\p{N}+",
        )
    ),
    ("deepseek-coder",): PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HANGUL_HAN, r"\p{N}")),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): PreTokenizer(_DEEPSEEK3),
    ("spark2_5",): PreTokenizer(
        (r"\p{N}{1,3}", _CJK, _PUNCTUATED + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
    ),
    ("falcon",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("poro-chat", "bloom", "gpt3-finnish"): PreTokenizer((_WORD,)),
    ("viking",): PreTokenizer((_WORD, r"\p{N}")),
    ("bailingmoe", "bailingmoe2", "llada-moe"): _BAILING_RULES,
    ("seed-coder",): PreTokenizer(
        (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)
    ),
    ("exaone-moe",): PreTokenizer(
        (
            _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    ("laguna",): PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    ("minicpm5",): PreTokenizer(
        (
            r"\p{N}{1,3}",
            _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ignore_merges=True,
    ),
    ("ufakzeka",): PreTokenizer((_QWEN2.removeprefix(_CONTRACTIONS + "|"),)),
    ("jais-2",): PreTokenizer(
        (
            _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+")
            + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s{1}",
        )
    ),
    ("youtu",): PreTokenizer(
        (
            "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
            "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _CJK,
            _cased(_CONTRACTIONS + "?", r"\p{N}"),
        ),
        ignore_merges=True,
    ),
    ("chameleon",): PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    ("gemma4",): PreTokenizer((r"[^\n]+|[\n]+",), add_bos=True, raw=True),
}


# Rules that cut every text between a letter and a space with a letter behind it, whatever stands around them: each
# match ends where a run of letters ends.
_WORD_PATTERNS = frozenset({_GPT2, _LLAMA3, _QWEN2, _QWEN35, _GPT4O, _cased("", r"\p{N}")})
# Rules that match neither (ASCII) letters nor spaces, and so do nothing to such a place.
_OTHER_PATTERNS = frozenset(
    {r"\p{N}", r"\p{N}{1,3}", r"\p{N}+", "[0-9][0-9][0-9]", r"[\p{P}\$\+<=>\^~\|]+", r"[\p{P}\$\+<=>\^~\|`]+", _CJK}
)


def cuts_between_words(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer (as a `tokenizer.json` has it) is known to cut between two ASCII words, always.

    So the ids of "... word" and of " word ..." put together are those of the whole text. False where that is not known.
    """
    if pre_tokenizer is None:
        return False
    cuts = False
    for step in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        match step:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                if pattern in _WORD_PATTERNS:
                    cuts = True
                elif pattern not in _OTHER_PATTERNS:
                    return False
            case {"type": "Digits"}:
                pass
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": bool(use_regex)}:
                cuts = cuts or use_regex  # that is the pattern of GPT-2
            case _:
                return False
    return cuts


def find_pretokenizer(pre: str) -> PreTokenizer | None:
    """The rules of one family, or None for a name that is not known."""
    for names, rules in _TABLE.items():
        if pre in names:
            return rules
    return None


def known_pretokenizers() -> list[str]:
    """Every name that `find_pretokenizer` knows, sorted."""
    return sorted(name for names in _TABLE for name in names)
