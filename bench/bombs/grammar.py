"""Regular expressions, schemas and grammars that are dear to compile, or to ask for what may come next."""

from typing import Any

from bench.bombs.bomb import CHAT, TEXT, Bomb, many, post

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _body(**constraint: Any) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": 8, **constraint}


def _regex(name: str, pattern: str, *expects: int) -> Bomb:
    return post(f"regex-{name}", TEXT, lambda: _body(guided_regex=pattern), *expects)


def _schema(name: str, schema: Any, *expects: int) -> Bomb:
    return post(f"schema-{name}", TEXT, lambda: _body(guided_json=schema), *expects)


def _grammar(name: str, source: str, *expects: int) -> Bomb:
    return post(f"grammar-{name}", TEXT, lambda: _body(guided_grammar=source), *expects)


def _levels(depth: int, width: int) -> dict[str, Any]:
    """A list of `anyOf` of so many references each to the same next level."""
    last = [{"type": "object", "properties": {f"p{i}": {"type": "string"}}} for i in range(width)]
    definitions: dict[str, Any] = {f"l{depth - 1}": {"anyOf": last}}
    for level in range(depth - 1):
        definitions[f"l{level}"] = {"anyOf": [{"$ref": f"#/$defs/l{level + 1}"}] * width}
    return {"$defs": definitions, "type": "array", "minItems": 1, "items": {"$ref": "#/$defs/l0"}}


def _nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _object(count: int, value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": value for i in range(count)}}


def _tools(count: int, strict: bool) -> dict[str, Any]:
    parameters = {**_object(20, {"type": "string"}), "required": [f"p{i}" for i in range(20)]}
    function = {"description": "x" * 200, "parameters": {**parameters, "additionalProperties": False}, "strict": strict}
    tools = [{"type": "function", "function": {"name": f"f{i}", **function}} for i in range(count)]
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "tools": tools, "tool_choice": "required"}


_LEVELS = _levels(3, 150)
_ITSELF = {"$ref": "#"}
_RECURSIVE = {"anyOf": [{"type": "array", "items": _ITSELF}, {"type": "object", "additionalProperties": _ITSELF}]}
_RING = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
_AHEAD = "".join(f"(?=.*{letter}{i})" for i, letter in enumerate(LETTERS * 2))
_RULES = "".join(f'r{i}: "w{i}" r{(i + 1) % 1900} | /a{i}.*/\n' for i in range(1900))
_AMBIGUOUS = '"x" | "x" a | a "x" | a a'

BOMBS = [
    _regex("brackets", "[" * 60_000, 400),
    _regex("groups", "(" * 60_000, 400),
    _regex("short-brackets", "[" * 19_000, 400),
    _regex("nested-repetition", "((a{0,1000}){0,1000}){0,1000}", 400),
    _regex("optional", "a?" * 2000 + "b", 200, 400),
    _regex("more-optional", "a?" * 9000 + "b", 200, 400),
    _regex("stars", "((((a*)*)*)*)*b", 200),
    _regex("backtracking", "(x+x+)+y", 200),
    _regex("far-back", ".*a.{18}.*b.{18}.*", 200),
    _regex("many-ways", "(.|..|...){0,3000}", 200, 400),
    _regex("ahead", _AHEAD + ".*", 400),
    _regex("behind", "(?<=a)b", 400),
    _regex("back-reference", r"(a+)\1", 400),
    _regex("classes", r"\p{L}{0,1000}\p{N}{0,1000}\p{P}{0,1000}", 200),
    _regex("any-text", ".{0,20000}", 200),
    _regex("words", "|".join(f"word{i}x{i * 7919 % 1000}" for i in range(1000)), 200),
    _regex("deep-groups", "(" * 49 + "a" + "b?)?" * 49, 200),
    _regex("zero-characters", "\x00" * 10_000, 200),
    _schema("levels", _LEVELS, 200),
    _schema("deep", _nested(390), 400),
    _schema("deeper", _nested(90), 200),
    _schema("all-of", {"allOf": [_object(1, {"pattern": f"^a{i}.*b"}) for i in range(200)]}, 400),
    _schema("enum", {"enum": [f"v{i}" for i in range(10_000)]}, 200),
    _schema("properties", _object(1000, {"type": "string"}), 200),
    _schema("patterns", _object(1000, {"type": "string", "pattern": "^(a|b|ab)*.*x{5}$"}), 200, 400),
    _schema("many-patterns", {"anyOf": [{"type": "string", "pattern": f"^.*{i}.*$"} for i in range(2000)]}, 200),
    _schema("pattern-properties", {"patternProperties": {f"^{a}.*x": {"type": "string"} for a in LETTERS}}, 400),
    _schema("one-of", {"oneOf": [{"type": "string", "pattern": f".*{a}{{3}}"} for a in LETTERS]}, 400),
    _schema("recursion", _RECURSIVE, 200),
    _schema("reference-to-itself", _ITSELF, 400),
    _schema("references-in-a-ring", _RING, 400),
    _schema("max-length", {"type": "string", "maxLength": 50_000}, 200),
    _schema("negative-length", {"type": "string", "maxLength": -1}, 400),
    _schema("huge-length", {"type": "string", "maxLength": 10**18}, 200, 400),
    _schema("lengths", {"type": "string", "pattern": "^(a|b|.c.)*$", "minLength": 1000, "maxLength": 5000}, 200, 400),
    _schema("items", {"type": "array", "maxItems": 5000, "items": {"type": "array", "maxItems": 5000}}, 200),
    _schema("multiple", {"type": "integer", "multipleOf": 9973, "maximum": 10**15}, 200, 400),
    _schema("text-of-brackets", "[" * 5_000_000, 413),
    _schema("text-of-lists", "[" + "[]," * 100_000 + "[]]", 400),
    _grammar("ambiguous", f"root ::= a+\na ::= {_AMBIGUOUS}\n", 200),
    _grammar("more-ambiguous", 'start: e\ne: e e | /./ | e "a" e | "b" e e e', 200, 400),
    _grammar("nullable", 'start: (a|b)*\na: b*\nb: a* "x"?\n', 200),
    _grammar("rules", "start: " + " | ".join(f"r{i}" for i in range(1900)) + "\n" + _RULES, 200),
    _grammar("repetition", 'start: ((("a"~0..1000)~0..1000)~0..1000)', 200, 400),
    _grammar("deep-repetition", 'start: a{1000}\na: b{1000}\nb: c{1000}\nc: "x"', 200, 400),
    _grammar("regex-in-it", "start: /((a{0,1000}){0,1000}){0,1000}/", 200, 400),
    _grammar("brackets", "root ::= " + "(" * 60_000, 400),
    _grammar("left-recursion", 'root ::= root "x" | root root |\n', 200, 400),
    post("choices", TEXT, lambda: _body(guided_choice=[f"choice number {i}" for i in range(10_000)]), 200),
    post("nested-choices", TEXT, lambda: _body(guided_choice=["a" * i for i in range(1, 700)]), 200),
    post("tools", CHAT, lambda: _tools(60, False), 200, 400),
    post("strict-tools", CHAT, lambda: _tools(60, True), 200, 400),
    post("heavy-masks", TEXT, lambda: {**_body(guided_json=_LEVELS), "n": 64}, 200),
    many("compile-at-once", 100, post("", TEXT, lambda: _body(guided_regex="a?" * 9000 + "b"), 200, 400, 429)),
]  # fmt: skip
