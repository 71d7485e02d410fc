"""How much of a prompt may be computed in a step in which running streams wait for their next token.

A fixed number of tokens would take 0.1 s here and 10 s there: a token of a prompt costs 0.5 ms in a small model and
20 ms in a large one, and several times as much at the end of a long line as at its start. So the number follows from
a time, and from how fast the latest steps were.

Knows numbers only; the engine core tells it what each step took, the scheduler asks it.
"""

# Prefill always goes on, and by no less than keeps the kernels busy: with 32 rows, a prompt of 7,900 tokens beside one
# stream took a third longer than alone, with 64 a seventh.
MIN_TOKENS = 64
ROWS = 16  # kernels compute rows by so many: the number is a multiple of it
MAX_STALL_S = 0.1  # unless somebody wants it otherwise
WEIGHT = 0.5  # of the latest step in the running mean: speed falls along a line


class PrefillPace:
    """`seconds`: how long prefill may hold up a step of running streams."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._tokens_per_s: float | None = None

    @property
    def tokens(self) -> int:
        """Prompt tokens of the next step, if streams wait in it."""
        if self._tokens_per_s is None:
            return MIN_TOKENS
        return max(MIN_TOKENS, int(self._tokens_per_s * self._seconds) // ROWS * ROWS)

    def saw_step(self, prompt_tokens: int, tokens: int, seconds: float) -> None:
        """A step computed `tokens` tokens, `prompt_tokens` of them for prefill. With few of those it says nothing."""
        if prompt_tokens < MIN_TOKENS or seconds <= 0:
            return
        latest = tokens / seconds
        mean = latest if self._tokens_per_s is None else self._tokens_per_s
        self._tokens_per_s = (1 - WEIGHT) * mean + WEIGHT * latest
