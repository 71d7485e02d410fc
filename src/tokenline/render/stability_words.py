"""What `stability` found, in words for people: a log's one line, and a phrase for each cause."""

from tokenline.render.breaks import Cause
from tokenline.render.stability import Stability

_PHRASES = {
    Cause.REASONING_DROPPED: "drops the reasoning of earlier turns",
    Cause.REASONING_NOT_SENT: "needs clients to send the reasoning back",
    Cause.PROMPT_NOT_KEPT: "drops the text that opened an answer once the answer is history",
    Cause.TOOLS_MOVED: "moves the tools when another turn follows",
    Cause.SYSTEM_MOVED: "moves system messages when another turn follows",
    Cause.ARGUMENTS: "rewrites tool-call arguments",
    Cause.WHITESPACE: "changes the white space around earlier answers",
    Cause.ASYMMETRY: "writes earlier turns differently from the last one",
}


def phrase(cause: Cause) -> str:
    """What the template does, as the end of a sentence that begins with "This template"."""
    return _PHRASES[cause]


def date_phrase(unit: str) -> str:
    """The same for a template that writes the date."""
    return "writes the date" if unit == "unknown" else f"writes the date, which changes every {unit}"


def summary(found: Stability) -> str:
    """One sentence."""
    if not found.supports_any:
        return f"This template refuses every conversation tried: {found.checks[0].refused}"
    phrases = [phrase(cause) for cause in found.causes]
    if found.date_unit is not None:
        phrases.append(date_phrase(found.date_unit))
    if not phrases:
        return "Each turn extends the last one's tokens."
    *others, last = phrases
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"This template {listed}; the cached prefix ends there."
