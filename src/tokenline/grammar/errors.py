"""What is wrong with a description of an answer: the one error of this room."""

import json
from typing import Any

from tokenline.fields import FieldError


class ConstraintError(FieldError):
    """A schema, expression, grammar or tool that is wrong, impossible, too large, or cannot be enforced.

    `path`: the place inside the JSON of the description: ("properties", "a", "multipleOf") of a schema; of tools from
    ("tools", index, "function", ...) on; () of all of it. The text goes on behind the name of the place: "must be ...".
    """


def unsupported(reason: str, *path: str | int) -> ConstraintError:
    """The error of something that is not wrong, and cannot be enforced."""
    return ConstraintError(path, reason, code="unsupported_value")


def impossible(reason: str, *path: str | int) -> ConstraintError:
    """The error of what no value can fulfil."""
    return ConstraintError(path, reason)


def shown(value: Any) -> str:
    """A value as JSON, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
