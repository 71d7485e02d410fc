"""The fewest tokens of a workload that must be prefilled: what a perfect, unlimited prefix cache would leave."""

from collections.abc import Iterable

import numpy as np

from tokenline.ids import common_prefix

Line = tuple[np.ndarray, np.ndarray]  # ids of a prompt and of its answer, int32


def fewest_prefilled(lines: Iterable[Line]) -> int:
    """Tokens of the prompts, in order of arrival, that no earlier prompt or answer has behind the same beginning; and
    the last token of each prompt in any case, since its logits are needed.

    These are the distinct positions in the trie of all prompts, but for those that an answer put there.
    """
    fewest, earlier = 0, []
    for prompt, answer in lines:
        held = max((common_prefix(line, prompt) for line in earlier), default=0)
        fewest += len(prompt) - min(held, len(prompt) - 1)
        earlier.append(np.concatenate([prompt, answer]))
    return fewest
