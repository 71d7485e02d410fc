"""The whole of an answer: reasoning in front of it, calls, the answer itself. What may follow what, as rules of a
grammar.

    plain:    [reasoning] answer
    strict:   [reasoning] text and calls, in any order          (`spec.StrictTools`)
    either:   [reasoning] calls, or the answer                   (`spec.CallsOrAnswer`)

Where the prompt has opened the reasoning the answer starts inside; else the model may open it, or not. A call's marker
ends the reasoning, too, as it does for the reader.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenline.grammar.calls import Lead, lead_to
from tokenline.grammar.notation import quoted
from tokenline.grammar.rules import FreeText, Rules
from tokenline.grammar.spec import Channels, Reasoning


@dataclass(frozen=True, slots=True)
class Content:
    """What an answer is made of, as rules."""

    answer: str | None = None  # None: any text
    calls: Sequence[Lead] = ()
    parallel: bool = True
    messages: Sequence[tuple[str, str]] = ()  # gpt-oss: names of functions, and the rules of their arguments
    is_forced: bool = False  # gpt-oss: one of the messages must come


def framed(content: Content, before: Reasoning | Channels | None, rules: Rules) -> str:
    """The grammar of an answer with what stands before it."""
    if isinstance(before, Channels):
        return _Channels(content, rules).source(before.in_message)
    body, after_call = _strict(content, rules) if content.answer is None else _either(content, rules)
    if before is None:
        return rules.source(body)
    text = FreeText("THOUGHT", rules)
    for marker in before.end:
        text.lead(marker, f"WS? {body}")
    for lead in content.calls:
        if lead.marker:
            lead_to(text, lead, after_call)
    # A text that is free may end anywhere, also before it has begun.
    text.finish("thoughts", (lambda ways: f"{ways} | {text.text}?") if content.answer is None else None)
    begin = " | ".join(map(rules.marker, before.begin))
    if not begin:
        return rules.source("thoughts")
    if before.opened:  # a model may repeat the marker that its prompt ends with
        return rules.source(f"(WS? ({begin}))? thoughts")
    return rules.source(f"WS? ({begin}) thoughts | {body}")


def _strict(content: Content, rules: Rules) -> tuple[str, str]:
    """The rule of text with calls in it, and what follows a call."""
    text = FreeText("FREE", rules)
    for lead in content.calls:
        lead_to(text, lead)
    text.finish("text", lambda ways: f"({ways})* {text.text}?")
    return "text", "text"


def _either(content: Content, rules: Rules) -> tuple[str, str]:
    """The rule of the answer or of calls, and what follows a call."""
    rules.add("answer", content.answer or "")
    if not content.calls:
        return "answer", ""
    ways = [lead.alone or f"{rules.marker(lead.marker)} ({lead.body})" for lead in content.calls]
    rules.add("calls", " | ".join(dict.fromkeys(ways)))
    rules.add("more", "(WS? calls)* WS?" if content.parallel else "WS?")
    rules.add("body", "answer | WS? calls more")
    return "body", "more"


class _Channels:
    """gpt-oss. `<|start|>assistant`, a header with a channel and perhaps a recipient, `<|message|>`, a text, an end."""

    _SPACE = "/ ?/"

    def __init__(self, content: Content, rules: Rules) -> None:
        self._content = content
        self._rules = rules

    def source(self, in_message: bool) -> str:
        rules, content, marker = self._rules, self._content, self._rules.marker
        channel, message = marker("<|channel|>"), marker("<|message|>")
        typed = f"{self._SPACE} ({marker('<|constrain|>')})? /(json)? ?/"
        strict = content.answer is None and not content.is_forced
        text = FreeText("THOUGHT", rules)
        text.lead("<|end|>", f'{marker("<|start|>")} "assistant" next')
        text.finish("thoughts", (lambda ways: f"{ways} | {text.text}?") if strict else None)
        ways = [f"{channel} /(analysis|commentary) ?/ {message} thoughts"]
        for name, arguments in content.messages:
            recipient = f"to=functions.{name}"
            ways.append(f"{channel} {quoted('commentary ' + recipient)} {typed} {message} {arguments}")
            ways.append(f"{quoted(' ' + recipient)} {channel} /commentary/ {typed} {message} {arguments}")
        if strict:
            ways.append(f"{channel} /final/ {typed} {message} ({text.text})?")
        elif content.answer is not None:
            ways.append(f"{channel} /final/ {typed} {message} {rules.add('answer', content.answer)}")
        rules.add("next", " | ".join(ways))
        return rules.source("thoughts" if in_message else "next")
