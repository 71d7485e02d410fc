"""Calls as JSON objects between markers: `<tool_call>{"name": .., "arguments": {..}}</tool_call>` and its relatives.

One reader for all of them; what differs is a `JsonFormat`. Between the markers stands one object, several, or a list;
the keys come in any order, and the arguments may be called `parameters`, or be JSON text in a string. A missing end
marker, as where the model's turn ends instead, and stray closing brackets behind a call do no harm.
"""

from dataclasses import dataclass

from tokenline.parse.blocks import Surroundings, give_back, read_content
from tokenline.parse.json_text import copy_value, escaped, ignore, read_members, read_string, whole_value
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source, Write

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("type", "id", "tool_call_id", "function")


@dataclass(frozen=True, slots=True)
class JsonFormat:
    begin: tuple[str, ...]
    end: str | None = None


HERMES = JsonFormat(("<tool_call>",), "</tool_call>")
FENCE = "```"  # of a Markdown code block


class JsonCalls:
    """Reader of content with marked JSON calls in it.

    `bare`: also without the markers, as small models write them (Qwen2.5-Coder nearly always): an object of its own, or
    in a code block, that has a call's keys only. For requests with tools: it must name one of them.
    """

    def __init__(self, form: JsonFormat, *, bare: bool = False) -> None:
        self._form = form
        self._unmarked = ("{", FENCE) if bare else ()
        self.markers = (*form.begin, *((form.end,) if form.end else ()))

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        lines = Surroundings(sink)
        while (
            marker := (yield from read_content(source, sink, *self._form.begin, *self._unmarked, write=lines.write))
        ) is not None:
            if marker in self._unmarked:
                if not (lines.in_prose and (yield from self._bare(source, sink, fenced=marker == FENCE))):
                    give_back(source, sink, marked=False, write=lines.write)
                continue
            if (yield from source.follows(FENCE, after_space=True)):
                yield from source.follows("json")
            if not (yield from read_calls(source, sink, ends=self.markers)):
                give_back(source, sink, write=lines.write)
                continue
            ends = ("}", "]") if self._form.end is None else ("}", "]", self._form.end)
            while (yield from source.follows(*ends, after_space=True)) in ("}", "]"):
                pass

    def _bare(self, source: Source, sink: Sink, *, fenced: bool) -> Reading[bool]:
        """A call without markers, behind its opening bracket or that of its code block."""
        if fenced:
            yield from source.follows("json")
            if not (yield from source.follows("{", after_space=True)):
                return False
        if not (yield from read_call(source, sink, bare=True, opened=True)):
            return False
        source.recorded()
        if fenced:
            yield from source.follows(FENCE, after_space=True)
        return True


def read_calls(
    source: Source,
    sink: Sink,
    separators: tuple[str, ...] = (),
    *,
    bare: bool = False,
    ends: tuple[str, ...] = (),
) -> Reading[bool]:
    """One call, several (with one of `separators` between them, or none), or a list of calls. False if there is none,
    or the last is broken; what is recorded then begins with the broken one. `bare`: see `read_call`. `ends`:
    markers that may stand behind calls. Where a list names a tool that there is not, that object alone is content.
    """
    if (yield from source.follows("[", after_space=True)):
        after = (",", "]")
    else:
        after = separators
    calls = 0
    while (yield from source.follows("{", after_space=True, consume=False)):
        if calls:
            source.record("")
        outcome = yield from read_call(source, sink, bare=bare, ends=ends if bare else ("]", "{", *ends))
        if outcome is None and "]" in after:
            give_back(source, sink)
            source.record("")
        elif not outcome:
            return False
        else:
            calls += 1
        if after and (yield from source.follows(*after, after_space=True)) == "]":
            break
    if not calls:
        return False
    source.recorded()
    return True


def read_call(
    source: Source, sink: Sink, *, bare: bool = False, opened: bool = False, ends: tuple[str, ...] = ()
) -> Reading[bool | None]:
    """One object that is a call. False if it is none, or the text ended before it did. `opened`: its bracket was read.
    None if it is complete, and there is no such tool. `ends`: where the call's own bracket was forgotten, one of these
    must stand behind its arguments.

    `bare`: no marker announces it. It must have only the keys of a call, arguments among them, else it is taken for
    something else as soon as that is clear.
    """
    call = _Call(sink, bare)

    def read_member(key: str) -> Reading[bool]:
        character = yield from source.peek()
        if key in ARGUMENT_KEYS and not call.has_arguments:
            call.has_arguments = True
            call.complete = yield from copy_arguments(source, call.arguments)
            return call.complete
        if key == "function" and character == "{":
            return (yield from read_members(source, read_member))
        if key in (*NAME_KEYS, "function") and character in ('"', "'"):
            name = yield from read_string(source)
            return bool(name) and (call.named(name) or not bare)
        if bare and key not in (*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS):
            return False
        return (yield from copy_value(source, ignore))

    if not opened:
        yield from source.space()
    if not (yield from read_members(source, read_member, opened=opened)):
        # The call's own bracket may be forgotten where the call is complete.
        ended = call.complete and (yield from source.at_end()) and not source.cut
        if not ended and not (
            call.complete and ends and (yield from source.follows(*ends, after_space=True, consume=False))
        ):
            return False
    if call.unknown:
        return None
    return call.end()


class _Call:
    """A call whose name and arguments may come in either order."""

    def __init__(self, sink: Sink, bare: bool) -> None:
        self._sink = sink
        self._bare = bare
        self._begun = False
        self._name: str | None = None
        self._waiting: list[str] = []  # arguments that came before the name
        self.unknown = False  # there is no tool of its name
        self.has_arguments = False
        self.complete = False  # its arguments are; the object has perhaps more members

    def named(self, name: str) -> bool:
        if self._name is not None:
            return True  # the first name counts
        if (tool := self._sink.tool(name)) is None:
            self.unknown = True
            return False
        self._name = tool
        if self._waiting:
            self._begin(name)
        return True

    def _begin(self, name: str) -> None:
        self._begun = True
        self._sink.begin_call(name)
        for piece in self._waiting:
            self._sink.arguments(piece)

    def arguments(self, text: str) -> None:
        if self.unknown:
            return
        if self._name is None:
            self._waiting.append(text)
            return
        if not self._begun:
            self._begin(self._name)
        self._sink.arguments(text)

    def end(self) -> bool:
        if self._name is None or (self._bare and not self.has_arguments):
            return False
        if not self.has_arguments:
            self.arguments("{}")
        self._sink.end_call()
        return True


def copy_arguments(source: Source, write: Write) -> Reading[bool]:
    """Copy a call's arguments, the JSON value that begins here. No arguments (null, an empty string) are `{}`; a string
    is taken for the JSON text in it.
    """
    yield from source.space()
    character = yield from source.peek()
    if character == '"':
        text = yield from read_string(source)
        if text is None:
            return False
        write(_as_json(text))
        return True
    if character in ("n", "N"):
        atom: list[str] = []
        if not (yield from copy_value(source, atom.append)):
            return False
        write("{}")
        return True
    return (yield from copy_value(source, write))


def _as_json(text: str) -> str:
    """JSON text that was given as a string; anything else stays a string."""
    if not text.strip():
        return "{}"
    return whole_value(text) or f'"{escaped(text)}"'
