"""What one template expects of its messages and tools, found out once by rendering small chats.

`normalize` adapts a request to it. Nothing here is a list of templates: whatever can be seen by trying is tried. Only
how a call looks in a format that the template mentions without writing it is known beforehand (see `CallStyle`).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from tokenline.render.common import common_characters
from tokenline.render.template import ChatTemplate

ROLES = ("system", "developer", "user", "assistant", "tool")


class CallStyle(StrEnum):
    """How an assistant message's tool calls get into the text."""

    TEMPLATE = "template"  # the template writes them
    LISTED = "listed"  # it does not, but has the markers of <|tool_call|>[{...}, ...] (Granite 3, Phi-4-mini)
    PYTHONIC = "pythonic"  # ... of <|tool_call_start|>[name(key="value")]<|tool_call_end|> (LFM2)
    TAGGED = "tagged"  # ... of <tool_call>{...}</tool_call> (Hermes), or of no format at all


class NoContent(StrEnum):
    """What an assistant message has for content when it only calls tools."""

    ABSENT = "absent"
    EMPTY = "empty"
    NULL = "null"


class IdForm(StrEnum):
    """What the ids of tool calls must look like. To a client they are opaque."""

    ANY = "any"
    NINE = "nine"  # nine letters and digits (Mistral)
    NAMED = "named"  # functions.NAME:NUMBER, since the function's name is written nowhere else (Kimi K2)


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """How one template wants its messages and tools."""

    roles: frozenset[str]  # roles that it accepts
    developer: bool  # it has a branch for the role "developer"; if not, that role becomes "system"
    parts: frozenset[str]  # roles whose content may be a list of parts; "calls" is an assistant with tool calls
    calls: CallStyle
    arguments_text: bool  # it copies tool-call arguments that are JSON text; otherwise it wants an object
    no_content: NoContent
    ids: IdForm
    single_calls: bool  # it refuses or drops a second call in one message, and takes two messages instead
    text_apart: bool  # it drops or misplaces the text beside calls, and shows it in a message of its own
    thought_apart: bool  # the same where the message has reasoning as well
    text_lost: tuple[str, str] | None  # it drops that text in any case: what it writes before an answer, before a call
    results: bool  # it shows what tools returned
    tools: bool  # it shows the request's tools, or says itself why not
    system: bool  # it accepts a system message
    systems: bool  # it shows each of several system messages at the start
    call_example: str  # how it writes a call, for the text that shows tools where it does not; "" if it writes none


def find_needs(template: ChatTemplate, named_tokens: Mapping[str, str]) -> TemplateNeeds:
    """Try the template on small chats."""
    return _Probe(template, named_tokens).needs()


_PYTHONIC_SIGNS = re.compile(r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[")
_Chat = list[dict[str, Any]]


class _Probe:
    FUNCTION, KEY, VALUE = "probe_function", "probe_key", "probe value"
    TEXT = f'{{ "{KEY}":"{VALUE}" }}'  # with spaces as no serialiser would write them
    ID, OPAQUE_ID = "probe12id", "call_0123456789abcdefABCDEF01"
    TOOL: ClassVar = {
        "type": "function",
        "function": {
            "name": "another",
            "description": "d",
            "parameters": {"type": "object", "properties": {"p": {"type": "string", "description": "d"}}},
        },
    }
    USER: ClassVar = {"role": "user", "content": "probe question"}
    ANSWER: ClassVar = {"role": "assistant", "content": "probe answer"}

    def __init__(self, template: ChatTemplate, named_tokens: Mapping[str, str]):
        self.template = template
        self.named_tokens = named_tokens
        self.arguments_text = False
        self.no_content = NoContent.ABSENT
        self.style = CallStyle.TEMPLATE

    # --- chats -------------------------------------------------------------------------------------------------------

    def render(self, messages: _Chat, tools: list[Any] | None) -> str | None:
        return self.template.attempt(messages, self.named_tokens, tools=tools, add_generation_prompt=False)

    def attempt(self, messages: _Chat) -> str | None:
        """What the template makes of a chat, without tools or, if it insists on them, with; None if it refuses."""
        output = self.render(messages, None)
        return self.render(messages, [self.TOOL]) if output is None else output

    def call(self, name: str = FUNCTION, value: str = VALUE, id: str = ID) -> dict[str, Any]:
        arguments = self.TEXT.replace(self.VALUE, value) if self.arguments_text else {self.KEY: value}
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def calling(self, *calls: dict[str, Any], **members: Any) -> dict[str, Any]:
        """An assistant message with calls; without `content`, what the template wants for none."""
        message: dict[str, Any] = {"role": "assistant"}
        if self.no_content is not NoContent.ABSENT:
            message["content"] = "" if self.no_content is NoContent.EMPTY else None
        return {**message, **members, "tool_calls": list(calls)}

    def result(self, content: Any = "probe result", name: str = FUNCTION, id: str = ID) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": id, "name": name, "content": content}

    def shows(self, messages: _Chat, *texts: str) -> bool:
        """Whether all these texts come out."""
        output = self.attempt(messages)
        return output is not None and all(text in output for text in texts)

    # --- what is found -----------------------------------------------------------------------------------------------

    def needs(self) -> TemplateNeeds:
        self.find_form_of_calls()
        by_template = self.style is CallStyle.TEMPLATE
        apart = by_template and self.wants_text_apart({})
        results = self.shows([self.USER, self.calling(self.call()), self.result("probe outcome")], "probe outcome")
        return TemplateNeeds(
            roles=self.roles(results),
            developer="developer" in self.template.roles(),
            parts=frozenset(role for role in (*ROLES, "calls") if self.reads_parts(role)),
            calls=self.style,
            arguments_text=self.arguments_text,
            no_content=self.no_content,
            ids=self.ids() if by_template else IdForm.ANY,
            single_calls=by_template and self.wants_single_calls(),
            text_apart=apart,
            text_lost=self.openings() if by_template and not apart and self.loses_text() else None,
            thought_apart=by_template and self.wants_text_apart({"reasoning_content": "hm", "thinking": "hm"}),
            results=results,
            tools=self.shows_tools(),
            system=self.attempt([{"role": "system", "content": "probe system"}, self.USER]) is not None,
            systems=self.shows_systems(),
            call_example=self.call_example() if by_template else "",
        )

    def find_form_of_calls(self) -> None:
        """Whether the template writes calls, and in which form it takes arguments and a missing content."""
        found: dict[tuple[bool, NoContent], str | None] = {}
        for self.arguments_text in (False, True):
            for self.no_content in NoContent:
                found[self.arguments_text, self.no_content] = self.attempt(
                    [self.USER, self.calling(self.call()), self.result()]
                )
        outputs = [output for output in found.values() if output is not None]
        if not outputs:  # perhaps it is the result that is refused
            outputs = [
                output for output in (self.attempt([self.USER, self.calling(self.call(), content="")]),) if output
            ]
        if outputs and not any(self.VALUE in output for output in outputs):
            self.style = self.style_in_text()
        self.arguments_text = self.wants_text(found)
        self.no_content = self.form_of_no_content(found)

    def style_in_text(self) -> CallStyle:
        if "<|tool_call|>" in self.template.source:
            return CallStyle.LISTED
        return CallStyle.PYTHONIC if _PYTHONIC_SIGNS.search(self.template.source) else CallStyle.TAGGED

    def wants_text(self, found: Mapping[tuple[bool, NoContent], str | None]) -> bool:
        """Text, if the template copies it and writes an object as JSON or not at all. A template that copies a text
        and has another form for objects means the objects (Gemma 4, Kimi K3).
        """
        pairs = [(found[False, content] or "", found[True, content] or "") for content in NoContent]
        copied = [(of_object, of_text) for of_object, of_text in pairs if self.TEXT in of_text]
        if copied:
            return not any(self.has_own_form(of_object, of_text) for of_object, of_text in copied)
        objects = any(self.KEY in of_object and f"'{self.KEY}'" not in of_object for of_object, _ in pairs)
        return not objects and any(self.VALUE in of_text for _, of_text in pairs)

    def has_own_form(self, of_object: str, of_text: str) -> bool:
        """Whether an object's members are shown, neither as JSON in the place where the text stands nor as Python."""
        if self.KEY not in of_object or f"'{self.KEY}'" in of_object:
            return False
        before, _, after = of_text.partition(self.TEXT)
        if not (of_object.startswith(before) and of_object.endswith(after)):
            return True
        try:
            return json.loads(of_object[len(before) : len(of_object) - len(after)]) != {self.KEY: self.VALUE}
        except ValueError:
            return True

    def form_of_no_content(self, found: Mapping[tuple[bool, NoContent], str | None]) -> NoContent:
        """As transformers has it, which drops what is null, unless only another form shows the call."""
        outputs = {content: found[self.arguments_text, content] for content in NoContent}
        showing = {content: output for content, output in outputs.items() if output and self.VALUE in output}
        if NoContent.ABSENT in showing:
            return NoContent.ABSENT
        if showing:  # the longer one writes "None", or an empty answer beside the call
            return min(showing, key=lambda content: len(showing[content]))
        absent = outputs[NoContent.ABSENT]
        return NoContent.EMPTY if absent is None or "None" in absent else NoContent.ABSENT

    def ids(self) -> IdForm:
        def chat(id: str) -> _Chat:
            return [self.USER, self.calling(self.call(id=id)), {"role": "tool", "tool_call_id": id, "content": "r"}]

        output = self.attempt(chat(self.OPAQUE_ID))
        if output is None:
            return IdForm.NINE if self.attempt(chat(self.ID)) is not None else IdForm.ANY
        return IdForm.NAMED if self.FUNCTION not in output and self.OPAQUE_ID in output else IdForm.ANY

    def wants_single_calls(self) -> bool:
        calls = (self.call(), self.call("probe_other", "another value", "probe34id"))
        results = (self.result(), self.result("another result", "probe_other", "probe34id"))
        wanted = ("probe_other", "another value", "another result")
        if self.shows([self.USER, self.calling(*calls), *results], *wanted):
            return False
        one_by_one = [
            message for call, result in zip(calls, results, strict=True) for message in (self.calling(call), result)
        ]
        return self.shows([self.USER, *one_by_one], *wanted)

    def wants_text_apart(self, thought: Mapping[str, str]) -> bool:
        """Whether text beside calls is lost or misplaced, now or once an answer follows, but not when it is apart."""
        text = "probe beside"

        def is_shown(*messages: dict[str, Any]) -> bool:
            chat = [self.USER, *messages, self.result()]
            outputs = [self.attempt([*chat, *more]) or "" for more in ([], [self.ANSWER, self.USER])]
            return all(0 <= output.find(text) < output.find(self.KEY) for output in outputs)

        together = self.calling(self.call(), content=text, **thought)
        apart = ({"role": "assistant", "content": text}, self.calling(self.call(), **thought))
        return not is_shown(together) and is_shown(*apart)

    def loses_text(self) -> bool:
        chat = [self.USER, self.calling(self.call(), content="probe beside"), self.result()]
        output = self.attempt(chat)
        return output is not None and self.KEY in output and "probe beside" not in output

    def openings(self) -> tuple[str, str] | None:
        """What the template writes between a question and an answer, and between it and the name in a call."""
        answered, called = (self.attempt([self.USER, last]) or "" for last in (self.ANSWER, self.calling(self.call())))
        start = common_characters(answered, called)
        answer, name = answered.find(self.ANSWER["content"], start), called.find(self.FUNCTION, start)
        return (answered[start:answer], called[start:name]) if answer >= 0 and name > start else None

    def roles(self, results: bool) -> frozenset[str]:
        """All roles that may be used: without "tool" where the template silently leaves out a tool's results."""
        silent = (
            {"tool"} if not results and self.attempt([self.USER, self.calling(self.call()), self.result()]) else set()
        )
        return (frozenset(ROLES) | self.template.roles()) - silent

    def reads_parts(self, role: str) -> bool:
        parts = [{"type": "text", "text": "first probe"}, {"type": "text", "text": "second probe"}]
        output = self.attempt(self.chat_with(role, parts))
        if output is None or not all(part["text"] in output for part in parts):
            return False
        return re.search("['\"]type['\"]", output.replace(self.TEXT, "")) is None  # it shows the list as it stands

    def chat_with(self, role: str, content: Any) -> _Chat:
        match role:
            case "tool":
                return [self.USER, self.calling(self.call()), self.result(content)]
            case "calls":
                return [self.USER, self.calling(self.call(), content=content), self.result()]
            case "user":
                return [{"role": role, "content": content}]
            case "assistant":
                return [self.USER, {"role": role, "content": content}, self.USER]
        return [{"role": role, "content": content}, self.USER]

    def shows_tools(self) -> bool:
        chats = ([{"role": "system", "content": "probe system"}, self.USER], [self.USER])
        outputs = [output for chat in chats if (output := self.render(chat, [self.TOOL])) is not None]
        return not outputs or any("another" in output for output in outputs)

    def shows_systems(self) -> bool:
        first, second = ({"role": "system", "content": f"{which} instruction"} for which in ("first", "second"))
        return self.shows([first, second, self.USER], "first instruction", "second instruction")

    def call_example(self) -> str:
        """A call as the template writes it, without what surrounds any answer."""
        arguments = '{"ARGUMENT": "VALUE"}' if self.arguments_text else {"ARGUMENT": "VALUE"}
        call = {"id": self.ID, "type": "function", "function": {"name": "FUNCTION_NAME", "arguments": arguments}}
        answered = self.attempt([self.USER, self.ANSWER])
        called = self.attempt([self.USER, self.calling(call)])
        if answered is None or called is None or "FUNCTION_NAME" not in called:
            return ""
        before, _, after = answered.partition(self.ANSWER["content"])
        start = common_characters(before, called)
        end = len(called) - common_characters(after[::-1], called[::-1])
        if called.rfind("<", 0, end) > called.rfind(">", 0, end):  # and one that ends as another does
            end = called.find(">", end) + 1
        if (opening := called.rfind("<", 0, start)) > called.rfind(">", 0, start):  # a tag that begins as another does
            start = opening
        return called[start:end].strip()
