"""Regular expressions and schemas that are dear to compile, or to ask for what may come next."""

from typing import Any

from bench.bombs.bomb import TEXT, post


def _regex(pattern: str) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": 8, "guided_regex": pattern}


BOMBS = [
    post("regex-brackets", TEXT, lambda: _regex("[" * 60_000), 400),
]
