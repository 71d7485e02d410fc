"""The ids of tool calls: opaque to clients, and translated for the few templates that want a certain form.

An id becomes the same in a call and in its result, and the same in every request, so that the cached prefix stays.
"""

import hashlib
import re
import string
from typing import Any

from tokenline.render.needs import IdForm
from tokenline.render.provenance import Traced, concat, literal, standing_for, trace

_LETTERS_AND_DIGITS = string.digits + string.ascii_letters


class CallIds:
    """The ids of a chat's tool calls in the form that the template wants."""

    def __init__(self, form: IdForm):
        self._form = form
        self._count = 0  # of calls so far
        self._given: dict[str, str] = {}

    def named(self, call: dict[str, Any]) -> dict[str, Any]:
        """The call with its id."""
        if self._form is IdForm.NAMED:
            id, function = call.get("id"), call["function"]["name"]
            own = re.fullmatch(rf"functions\.{re.escape(function)}:(\d+)", id or "")
            number = own[1] if own else str(self._count)
            call = {**call, "id": concat([literal("functions."), function, literal(f":{number}")])}
            if id is not None:
                self._given[id] = call["id"]
        elif self._form is IdForm.NINE:
            call = {**call, "id": nine_characters(call["id"] if call.get("id") is not None else f"call {self._count}")}
        self._count += 1
        return call

    def of_result(self, id: str) -> str:
        """The id of a result."""
        return nine_characters(id) if self._form is IdForm.NINE else self._given.get(id, id)


def nine_characters(id: str) -> str:
    """An id of nine letters and digits: the same, or a digest of it."""
    if re.fullmatch("[0-9A-Za-z]{9}", id):
        return id
    number = int.from_bytes(hashlib.sha256(str.__str__(id).encode(errors="replace")).digest()[:16])
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_LETTERS_AND_DIGITS))
        digits.append(_LETTERS_AND_DIGITS[digit])
    text = "".join(digits)
    return trace(text, standing_for(id, len(text))) if isinstance(id, Traced) and id else text
