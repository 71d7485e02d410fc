"""What is wrong with a description of an answer: the one error of this room."""

from tokenline.fields import FieldError


class ConstraintError(FieldError):
    """A schema, expression, grammar or tool that is wrong, impossible, too large, or cannot be enforced.

    `path`: the place inside the JSON of the description: ("properties", "a", "multipleOf") of a schema; of tools from
    ("tools", index, "function", ...) on; () of an expression or a grammar.
    """
