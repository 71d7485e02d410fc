"""Arguments that come one parameter at a time, as text, and leave as pieces of one JSON object."""

import json

from tokenline.parse.json_text import escaped
from tokenline.parse.source import Write
from tokenline.parse.tools.schema import ToolSchemas, text_to_json

_WRAPPERS = ("arguments", "input", "parameters", "properties")


class ArgumentsWriter:
    """The JSON object of one call. A parameter that can only be a string streams; others wait for their end, since
    only the whole text says what they are.

    All arguments may come as an object in one parameter (`arguments` and the like) that the tool does not have.
    """

    def __init__(self, write: Write, schemas: ToolSchemas, tool: str, undeclared: frozenset[str]) -> None:
        """`undeclared`: the types of a parameter of which the schema says nothing (see `text_to_json`)."""
        self._write = write
        self._schemas = schemas
        self._tool = tool
        self._undeclared = undeclared
        self._types: frozenset[str] = frozenset()
        self._text: list[str] = []
        self._empty = True
        self._known = frozenset(schemas.positional(tool))
        self._wrapper_types: frozenset[str] = frozenset()
        self._wrapper: str | None = None  # the first parameter, while it may hold all of them

    def begin(self, parameter: str, types: frozenset[str] | None = None) -> None:
        """`types`: given where the format itself says them."""
        if types is None:
            types = self._schemas.types(self._tool, parameter) or self._undeclared
        self._types = types
        self._end_wrapper()
        if self._empty and self._known and parameter in _WRAPPERS and parameter not in self._known:
            self._wrapper = parameter
            return
        self._key(parameter)
        self._write('"' if self._streams else "")

    def _end_wrapper(self, *, last: bool = False) -> bool:
        """What was held back is written: as the arguments themselves (True) if it is the last and they are the tool's,
        else as the parameter that it seemed to be.
        """
        if self._wrapper is None:
            return False
        wrapper, self._wrapper = self._wrapper, None
        text, self._text = "".join(self._text), []
        if last and (inner := self._all_arguments(text)):
            self._write(inner)
            return True
        self._key(wrapper)
        self._write(text_to_json(text, self._wrapper_types))
        return False

    def _all_arguments(self, text: str) -> str | None:
        value = text_to_json(text, frozenset({"object"}))
        try:
            members = json.loads(value)
        except RecursionError:
            return None
        return value if isinstance(members, dict) and members and members.keys() <= self._known else None

    def _key(self, parameter: str) -> None:
        self._write(f'{"{" if self._empty else ", "}"{escaped(parameter)}": ')
        self._empty = False

    @property
    def _streams(self) -> bool:
        return self._types == {"string"}

    def text(self, piece: str) -> None:
        if self._streams and self._wrapper is None:
            self._write(escaped(piece))
        else:
            self._text.append(piece)

    def end(self) -> None:
        if self._wrapper is not None:
            self._wrapper_types = self._types
            return
        self._write('"' if self._streams else text_to_json("".join(self._text), self._types))
        self._text = []

    def value(self, parameter: str, json_text: str) -> None:
        """A whole parameter whose JSON is known."""
        self._end_wrapper()
        self._key(parameter)
        self._write(json_text)

    def close(self) -> None:
        if not self._end_wrapper(last=True):
            self._write("{}" if self._empty else "}")
