"""How much of an answer has come back: in a later request, behind the place where it was generated.

A client sends an answer back as it got it: whole, or cut (it went away, the answer was too long, a stop string ended
it), perhaps with other white space at its end. So the ids that were generated stand for a text if all that differs, up
to the next control token, is white space or the rest of a token. An answer that was edited is another text: of it, only
what was generated before its last unchanged control token counts.
"""

from collections.abc import Sequence

import numpy as np

from tokenline.render.common import common_characters
from tokenline.render.memory import Answer


def echoed(answer: Answer, text: str, controls: Sequence[tuple[int, int]]) -> int:
    """How many ids of `answer` begin a text; 0 if none that was generated does.

    `controls`: start and end of each control token in `text`, ascending.
    """
    common = common_characters(answer.text, text)
    common = next((start for start, end in controls if start < common < end), common)
    segment_end = next((start for start, _ in controls if start >= common), len(text))
    if text[common:segment_end].strip():
        common = max((end for _, end in controls if end <= common), default=0)
    starts, ends = answer.offsets[:, 0], answer.offsets[:, 1]
    # a border of two ids, which do not share a character
    is_border = (ends <= common) & (np.append(starts[1:], ends[-1]) >= ends)
    borders = np.flatnonzero(is_border)
    if len(borders) == 0 or ends[borders[-1]] <= answer.begins_at:
        return 0
    return int(borders[-1]) + 1
