"""Bodies that are dear to read, to check, to tokenize or to answer."""

import json
from typing import Any

from bench.bombs.bomb import CHAT, TEXT, many, post

MIB = 1 << 20


def _chat(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **more}


def _text(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 2, **more}


def _tokenize(name: str, text: str, *expects: int, slow: bool = False, **more: Any):
    return post(f"tokenize-{name}", "/tokenize", lambda: {"prompt": text, **more}, *expects, slow=slow)


def _wide(depth: int, width: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] * width
    return value


BOMBS = [
    # What JSON itself can cost.
    post("nested-arrays", CHAT, lambda: b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, 413),
    post("nested-arrays-23-mb", CHAT, lambda: b'{"messages": [' + b"[[[[[[]]]]]]," * 1_800_000 + b"1]}", 413),
    post("unknown-fields", CHAT, lambda: {"messages": []} | {f"field{i}": i for i in range(500_000)}, 413),
    post("few-unknown-fields", CHAT, lambda: _chat("x") | {f"field{i}": i for i in range(50_000)}, 200),
    post("one-unknown-field-of-15-mb", CHAT, lambda: _chat("x", field="y" * 15 * MIB), 200),
    post("empty-objects", CHAT, lambda: b'{"messages": [' + b"{}," * 1_000_000 + b"{}]}", 413),
    post("long-number", CHAT, lambda: b'{"max_tokens": ' + b"9" * 1_000_000 + b"}", 400),
    post("tiny-number", CHAT, lambda: b'{"temperature": 1e-' + b"9" * 100_000 + b', "messages": []}', 400),
    post("infinity", CHAT, lambda: b'{"temperature": 1e999, "messages": []}', 400),
    post("half-surrogates", TEXT, lambda: b'{"prompt": "' + b"\\ud800" * 10_000 + b'"}', 400),
    post("escaped-zeros", TEXT, lambda: b'{"max_tokens": 1, "prompt": "' + b"\\u0000" * 200_000 + b'"}', 400, 413),
    post("one-key-many-times", CHAT, lambda: b"{" + b'"messages": [],' * 50_000 + b'"n": 1}', 413),
    post("long-key", CHAT, lambda: _chat("x", **{"k" * 10 * MIB: 1}), 200),
    post("utf-16", CHAT, lambda: json.dumps(_chat("x")).encode("utf-16"), 400),
    post("16-mib-and-a-byte", CHAT, lambda: b" " * (16 * MIB + 1), 413),
    # Wrong values, a million at a time.
    post("wrong-prompts", TEXT, lambda: _text([["x"] * 100] * 1000), 400, 413),
    post("wrong-stop-ids", CHAT, lambda: _chat("x", stop_token_ids=["x"] * 200_000), 400),
    post("wrong-biases", CHAT, lambda: _chat("x", logit_bias={f"x{i}": "y" for i in range(50_000)}), 400),
    post("many-stops", CHAT, lambda: _chat("x", stop=["x"] * 100_000), 400),
    # Texts that are long, and those whose tokens are dear.
    _tokenize("8-mb", "the quick brown fox " * 400_000, 400),
    _tokenize("8-mb-without-special-tokens", "the quick brown fox " * 400_000, 400, add_special_tokens=False),
    _tokenize("30-mb", "x" * 30 * MIB, 413),
    _tokenize("token-strings", "a1 " * 300_000, 200, return_token_strs=True),
    _tokenize("digits", "1234567890" * 100_000, 200),
    _tokenize("one-word", "a" * 1_000_000, 200, slow=True),
    _tokenize("emoji", "😀" * 250_000, 200),
    _tokenize("accents", "a\u0301" * 300_000, 200, slow=True),
    _tokenize("control-tokens", "<|im_start|>" * 80_000, 200),
    post("detokenize-6-m-ids", "/detokenize", lambda: {"tokens": [5] * 6_000_000}, 413),
    post("detokenize-many-ids", "/detokenize", lambda: {"tokens": [5] * 300_000}, 200),
    post("detokenize-wrong-ids", "/detokenize", lambda: {"tokens": ["5"] * 200_000}, 400),
    # Conversations.
    post("long-book", CHAT, lambda: _chat("word " * 3_000_000), 400),
    post("many-messages", CHAT, lambda: {"messages": [{"role": "user", "content": "x"}] * 20_000}, 400),
    post("many-parts", CHAT, lambda: _chat([{"type": "text", "text": "x"}] * 20_000), 400),
    post("forged-control-tokens", CHAT, lambda: _chat("<|im_end|>" * 80_000), 400),
    post("one-long-model", CHAT, lambda: _chat("x", model="m" * 10 * MIB), 404),
    post("one-long-role", CHAT, lambda: {"messages": [{"role": "r" * 10 * MIB, "content": "x"}]}, 400),
    post("deep-tool", CHAT, lambda: _chat("x", tools=[{"type": "function", "function": _wide(12, 2)}]), 400),
    post("template-of-a-book", "/apply-template", lambda: _chat("word " * 3_000_000), 400),
    # Many at once.
    many("large-bodies", 16, post("", CHAT, lambda: _chat("x", field="y" * 15 * MIB), 200, 429)),
    many("tokenize-at-once", 40, post("", "/tokenize", lambda: {"prompt": "a1 " * 20_000}, 200, 429), ),
    # Answers that are large.
    post("prompt-scores", TEXT, lambda: _text([5] * 4000, prompt_logprobs=20, n=2), 200, slow=True),
    post("prompt-scores-beyond", TEXT, lambda: _text([5] * 4000, prompt_logprobs=20, n=4), 400),
    post("echoed-scores", TEXT, lambda: _text([5] * 4000, echo=True, logprobs=20, stream=True), 200, slow=True),
    post("scores-beyond", TEXT, lambda: _text("x", logprobs=20, n=128, max_tokens=1000), 400),
]  # fmt: skip
