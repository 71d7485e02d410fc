"""Prompts that no server has seen: made-up prose of an exact number of tokens, different for every seed."""

import random

WORDS = """harbor lantern copper willow garden market river stone window paper engine silver winter bridge letter
orange station corner shadow mountain village pencil forest kitchen doctor captain morning evening ticket island
teacher machine pocket basket summer castle candle meadow thunder valley number circle planet summit wagon barrel
walked carried opened followed remembered painted counted crossed watched repaired gathered answered measured
slowly quietly often never always together between under across behind without about""".split()


class Prose:
    """Made-up sentences, cut to a number of tokens of one tokenizer."""

    def __init__(self, tokenizer, seed: str):
        self._tokenizer = tokenizer
        self._random = random.Random(seed)

    def text(self, tokens: int) -> str:
        """About `tokens` tokens of fresh text (exact for tokenizers that keep words apart)."""
        words: list[str] = []
        while True:
            for _ in range(max(1, tokens // 12)):
                words += self._random.choices(WORDS, k=self._random.randint(6, 11))
                words[-1] += "."
            ids = self._tokenizer.encode(" ".join(words))
            if len(ids) >= tokens:
                return self._tokenizer.decode(ids[:tokens])
