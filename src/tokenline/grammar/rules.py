"""The rules of one grammar in the library's notation: markers, and free text up to places that lead on.

A marker that is a control token of the vocabulary can only be that token; one that is text can be spelled in any way;
one may be made of both.
"""

from collections.abc import Callable, Mapping

from tokenline.grammar.notation import quoted

SPACE = r"/[ \t\r\n]{1,16}/"
_ANY = "/(?s:.*)/"


class Rules:
    """Rules by name. The name WS is white space."""

    def __init__(self, special_ids: Mapping[bytes, int]) -> None:
        """`special_ids`: ids of control tokens by their spelling."""
        self._special_ids = {spelling.decode(errors="replace"): i for spelling, i in special_ids.items() if spelling}
        self._lines = [f"WS: {SPACE}"]

    def add(self, name: str, body: str) -> str:
        self._lines.append(f"{name}: {body}")
        return name

    def source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines]) + "\n"

    def marker(self, text: str) -> str:
        """What stands for a marker in a rule."""
        return " ".join(quoted(part) if isinstance(part, str) else f"<[{part}]>" for part in self.parts(text))

    def parts(self, text: str) -> list[str | int]:
        """A marker as texts and ids of control tokens. Longer control tokens go before shorter ones."""
        if not text:
            return []
        if text in self._special_ids:
            return [self._special_ids[text]]
        inside = max((name for name in self._special_ids if name in text), key=len, default=None)
        if inside is None:
            return [text]
        before, _, after = text.partition(inside)
        return [*self.parts(before), self._special_ids[inside], *self.parts(after)]


class FreeText:
    """Text without control tokens, up to the first place that leads on to something else."""

    def __init__(self, name: str, rules: Rules) -> None:
        """`name`: of terminals, so in upper case."""
        self._name = name
        self._rules = rules
        self._heads: list[tuple[str, str]] = []  # an expression of the text before a place, and what follows
        self._tokens: list[str] = []  # what begins with a control token
        self._mixed: list[tuple[str, str]] = []  # a text, and what follows from a control token on

    def lead(self, marker: str, body: str) -> None:
        """Where this marker stands, `body` follows."""
        first, *rest = self._rules.parts(marker)
        after = " ".join([*(quoted(part) if isinstance(part, str) else f"<[{part}]>" for part in rest), body])
        if isinstance(first, int):
            self._tokens.append(f"<[{first}]> {after}")
        elif rest:
            self._mixed.append((first, after))
        else:
            self._heads.append((f"{_ANY} {quoted(first)}", after))

    def head(self, expression: str, body: str) -> None:
        """Where text ends that matches this as a whole, `body` follows."""
        self._heads.append((expression, body))

    def finish(self, text_rule: str, may_end: Callable[[str], str] | None = None) -> str:
        """Add the rule `text_rule`: the text with what it leads to.

        may_end: given where the text may be all: makes a rule's body of the alternatives.
        """
        name, rules = self._name, self._rules
        ways = []
        for number, (head, _) in enumerate(self._heads):
            rules.add(f"{name}_HEAD_{number}", head)
        if self._heads:
            rules.add(f"{name}_HEAD", " | ".join(f"{name}_HEAD_{number}" for number in range(len(self._heads))))
        for number, (_, body) in enumerate(self._heads):
            # Up to the first place where it leads on, and no further.
            rules.add(f"{name}_OPEN_{number}", f"{name}_HEAD_{number} & ~({name}_HEAD /(?s:.+)/)")
            ways.append(f"{name}_OPEN_{number} {body}")
        within = f" & ~({name}_HEAD {_ANY})" if self._heads else ""
        rules.add(f"{name}_TEXT", "/(?s:.+)/" + within)
        for number, (text, body) in enumerate(self._mixed):
            rules.add(f"{name}_LEAD_{number}", f"({_ANY} {quoted(text)})" + within)
            ways.append(f"{name}_LEAD_{number} {body}")
        ways += [f"{name}_TEXT? {body}" for body in self._tokens]
        return rules.add(text_rule, may_end(" | ".join(ways)) if may_end else " | ".join(ways))

    @property
    def text(self) -> str:
        """The text alone, at least one character."""
        return f"{self._name}_TEXT"
