"""How fast prompts are computed, and how much of them fits a step in which running streams wait for their next token.

A fixed number of tokens would take 0.1 s on one machine and 10 s on another: a token of a prompt costs 0.5 ms in a
small model and 20 ms in a large one, and several times as much at the end of a long line as at its start. So the
budget follows from a time, and from how fast the latest steps were.

Knows numbers only; the engine core tells it what each step took, scheduler and disk tier ask it.
"""

# Prefill always goes on, and by no less than keeps the kernels busy: with 32 rows, a prompt of 7,900 tokens beside one
# stream took a third longer than alone, with 64 a seventh.
MIN_TOKENS = 64
ROWS = 16  # kernels compute rows by so many: the budget is a multiple of it
MAX_STALL_S = 0.1  # the default, see EngineSettings
ALONE = 4  # times as long may a step take beside which nobody waits
WEIGHT = 0.5  # of the latest step in the running mean: speed falls along a line


class PrefillSpeed:
    """A running mean over the steps that computed enough of prompts to say something."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None  # None: not known yet

    def saw_step(self, prompt_tokens: int, tokens: int, seconds: float) -> None:
        """A step computed `tokens` tokens, `prompt_tokens` of them for prefill."""
        if prompt_tokens < MIN_TOKENS or seconds <= 0:
            return
        latest = tokens / seconds
        mean = latest if self.tokens_per_s is None else self.tokens_per_s
        self.tokens_per_s = (1 - WEIGHT) * mean + WEIGHT * latest


class PrefillBudget:
    """`seconds`: how long prefill may hold up a step of running streams."""

    def __init__(self, speed: PrefillSpeed, seconds: float):
        self._speed = speed
        self._seconds = seconds

    @property
    def tokens(self) -> int:
        """Prompt tokens of the next step, if streams wait in it."""
        return self._tokens_in(self._seconds) or MIN_TOKENS

    @property
    def tokens_alone(self) -> int | None:
        """Prompt tokens of the next step, if nobody else is there: whoever comes meanwhile waits for the step to end.
        None: as many as a step may have, since the speed is not known yet.
        """
        return self._tokens_in(self._seconds * ALONE)

    def _tokens_in(self, seconds: float) -> int | None:
        if self._speed.tokens_per_s is None:
            return None
        return max(MIN_TOKENS, int(self._speed.tokens_per_s * seconds) // ROWS * ROWS)
