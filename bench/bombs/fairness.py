"""Small requests for much work, beside which others wait."""

from bench.bombs.bomb import TEXT, post

BOMBS = [
    post("prompts-times-n", TEXT, lambda: {"prompt": ["x"] * 256, "n": 128, "max_tokens": 64}, 400),
]
