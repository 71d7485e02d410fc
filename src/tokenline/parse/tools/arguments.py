"""Arguments that come one parameter at a time, as text, and leave as pieces of one JSON object."""

from tokenline.parse.json_text import escaped
from tokenline.parse.source import Write
from tokenline.parse.tools.schema import ToolSchemas, text_to_json


class ArgumentsWriter:
    """The JSON object of one call. A parameter that can only be a string streams; others wait for their end, since
    only the whole text says what they are.
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

    def begin(self, parameter: str, types: frozenset[str] | None = None) -> None:
        """`types`: given where the format itself says them."""
        if types is None:
            types = self._schemas.types(self._tool, parameter) or self._undeclared
        self._types = types
        self._key(parameter)
        self._write('"' if self._streams else "")

    def _key(self, parameter: str) -> None:
        self._write(f'{"{" if self._empty else ", "}"{escaped(parameter)}": ')
        self._empty = False

    @property
    def _streams(self) -> bool:
        return self._types == {"string"}

    def text(self, piece: str) -> None:
        if self._streams:
            self._write(escaped(piece))
        else:
            self._text.append(piece)

    def end(self) -> None:
        self._write('"' if self._streams else text_to_json("".join(self._text), self._types))
        self._text = []

    def value(self, parameter: str, json_text: str) -> None:
        """A whole parameter whose JSON is known."""
        self._key(parameter)
        self._write(json_text)

    def close(self) -> None:
        self._write("{}" if self._empty else "}")
