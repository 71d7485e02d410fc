"""Prompts that no server has seen: made-up prose of an exact number of tokens, different for every seed."""

import random

from tokenline.render.renderer import Renderer

WORDS = """harbor lantern copper willow garden market river stone window paper engine silver winter bridge letter
orange station corner shadow mountain village pencil forest kitchen doctor captain morning evening ticket island
teacher machine pocket basket summer castle candle meadow thunder valley number circle planet summit wagon barrel
walked carried opened followed remembered painted counted crossed watched repaired gathered answered measured
slowly quietly often never always together between under across behind without about""".split()


class Prose:
    """Made-up sentences, cut to a number of tokens of one model's tokenizer."""

    def __init__(self, renderer: Renderer, seed: str):
        self.renderer = renderer
        self._random = random.Random(seed)

    def text(self, tokens: int) -> str:
        """About `tokens` tokens of fresh text (exact for tokenizers that keep words apart)."""
        words: list[str] = []
        while True:
            for _ in range(max(1, tokens // 12)):
                words += self._random.choices(WORDS, k=self._random.randint(6, 11))
                words[-1] += "."
            ids = self.renderer.tokenizer.encode(" ".join(words))
            if len(ids) >= tokens:
                return self.renderer.tokenizer.decode(ids[:tokens])
