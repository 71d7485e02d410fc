"""How far prompts are computed: steps for the requests that ask, and a line in the log where it takes long.

Told of one choice of each request, which is the one that computes the prompt.
"""

import logging

from tokenline.engine.request import PromptProgress, Step
from tokenline.engine.sequence import Sequence

log = logging.getLogger(__name__)

LOG_EVERY_S = 10.0


def progress_step(sequence: Sequence, now: float) -> Step | None:
    """How far the prompt of a sequence that was scheduled is. None: nobody asked, or nothing is new."""
    if not sequence.request.reports_progress or sequence.choice != 0 or sequence.cache_use_reported:
        return None
    processed = min(sequence.computed, sequence.prompt_length)
    if sequence.progress_reported is not None and processed <= sequence.progress_reported:
        return None  # after a preemption, what was told is computed again
    assert sequence.cached is not None
    assert sequence.first_scheduled_s is not None
    sequence.progress_reported = processed
    elapsed_s = now - sequence.first_scheduled_s
    progress = PromptProgress(sequence.prompt_length, sequence.cached, processed, elapsed_s)
    return Step(sequence.request.request_id, sequence.choice, (), progress=progress)


def log_long_prefill(sequence: Sequence, now: float) -> None:
    """Say in the log how far a prompt is, once every LOG_EVERY_S seconds."""
    if sequence.choice != 0 or sequence.computed >= sequence.prompt_length or sequence.first_scheduled_s is None:
        return
    last = sequence.first_scheduled_s if sequence.progress_logged_s is None else sequence.progress_logged_s
    if now - last >= LOG_EVERY_S:
        sequence.progress_logged_s = now
        log.info(
            "request %s: %d of %d prompt tokens are processed after %.0f s",
            sequence.request.request_id,
            sequence.computed,
            sequence.prompt_length,
            now - sequence.first_scheduled_s,
        )
