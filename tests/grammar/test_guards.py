"""What is made to harm the process does not: each case runs in a process of its own, which must live on.

Without the guards the chains end it by a segmentation fault, and the others take minutes or gigabytes.
"""

import subprocess
import sys

import pytest

from tests.limits import HANG_S

PROGRAM = """
import functools, sys, threading
from tests.grammar.drive import byte_compiler, lets_through
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import *
def closed(**properties):
    return {{"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}
def refs(count, make):
    definitions = {{f"d{{i}}": make({{"$ref": f"#/$defs/d{{i + 1}}"}}) for i in range(count)}}
    return {{"$defs": {{**definitions, f"d{{count}}": {{"type": "integer"}}}}, "$ref": "#/$defs/d0"}}
def rules(count, sign, head, body):
    chain = "".join(f"r{{i}}{{sign}} " + body.format(next=f"r{{i + 1}}") + "\\n" for i in range(count))
    return Grammar(head + chain + f"r{{count}}{{sign}} \\"x\\"\\n")
compiler = byte_compiler()
def work():
    try:
        make = compiler.compile(ConstraintSpec({form}))
    except ConstraintError as error:
        print("refused:", error)
        return
    grammar = make()
    grammar.mask()
    print("compiled")
thread = threading.Thread(target=work)  # as a server would: with a stack like any other
thread.start()
thread.join()
assert lets_through(compiler.compile(ConstraintSpec(Choice(("still here",)))), "still here")
print("alive")
"""


@pytest.mark.parametrize(
    ("form", "outcome"),
    [
        ('rules(5_000, " ::=", "root ::= r0\\n", "{next}")', "rules"),
        ('rules(450, " ::=", "root ::= r0\\n", "\\"a\\" {next}")', "compiled"),
        ('rules(1_900, ":", "start: r0\\n", "{next}")', "compiled"),
        ('rules(1_900, ":", "start: r0\\n", "\\"a\\" {next} | \\"b\\"")', "compiled"),
        ('rules(15_000, ":", "start: r0\\n", "{next}")', "longer|rules"),
        ('Grammar("start: " + "(" * 5_000 + "\\"a\\"" + ")" * 5_000)', "brackets"),
        ('Grammar("start: ((\\"a\\"{1000}){1000}){1000}")', "compiled"),
        ('Grammar("start: e\\ne: e e | \\"a\\" | \\"aa\\"")', "compiled"),
        ('Grammar("start: %json " + "{\\"type\\": \\"integer\\", \\"multipleOf\\": 1047297}")', "multipleOf"),
        ("JsonSchema(refs(2_000, lambda inner: inner))", "compiled"),
        ("JsonSchema(refs(2_000, lambda inner: closed(a=inner)))", "compiled"),
        ('JsonSchema(refs(1_500, lambda inner: {"allOf": [inner], "minimum": 3}))', "compiled|refused"),
        ("JsonSchema(functools.reduce(lambda inner, _: closed(a=inner), range(95), True))", "compiled"),
        ("JsonSchema(functools.reduce(lambda inner, _: closed(a=inner), range(100_000), True))", "deep"),
        ('JsonSchema({"const": functools.reduce(lambda inner, _: [inner], range(100_000), 1)})', "deep"),
        ('JsonSchema({"type": "integer", "multipleOf": 9_973})', "compiled"),
        ('JsonSchema({"type": "array", "maxItems": 10**9})', "maxItems"),
        ('JsonSchema({"type": "array", "items": {}, "minItems": 5_000})', "compiled"),
        ('JsonSchema({"const": "x" * 16_000})', "compiled"),
        ('JsonSchema({"enum": [f"value {i}" for i in range(15_000)]})', "compiled"),
        ('JsonSchema({"type": "object", "properties": {f"property{i}": {} for i in range(1_000)}})', "compiled"),
        ('JsonSchema({"type": "object", "patternProperties": {f"^k{i}_.*x.*y$": {} for i in range(20)}})', "compiled"),
        (
            'JsonSchema({"allOf": [{"anyOf": [closed(**{f"p{k}{i}": {}}) for i in range(20)]} for k in range(4)]})',
            "refused",
        ),
        ('JsonSchema({"type": "string", "allOf": [{"pattern": f"a{c}.*{c}b"} for c in "cdefghijklmnop"]})', "refused"),
        ('Regex("(" * 49 + "a" + ")*" * 49)', "compiled"),
        ('Regex("((a|b)*a(a|b){30}){30}")', "compiled"),
        ('Regex("a{20000}")', "compiled"),
        ('Choice(tuple(f"option number {i}" for i in range(8_000)))', "compiled"),
    ],
)
def test_the_process_lives_on(form: str, outcome: str):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(form=form)], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, last = done.stdout.strip().split("\n")
    assert last == "alive"
    if outcome == "compiled":
        assert first == "compiled", first
    else:
        assert any(word in first for word in outcome.split("|")), first
