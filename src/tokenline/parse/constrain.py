"""What an answer may be, by a grammar over its text: JSON schemas, regular expressions, choices, forced tool calls.

The other side of the parsers: they read a format, this makes sure that it is written. Compiles with xgrammar, which is
imported on first use, since that takes seconds and most requests are free. The result is what the engine asks before
each id (`engine.request.Constraint`): a bit mask of allowed ids.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import numpy as np

from tokenline.parse.delta import TokenBytes
from tokenline.parse.schema_check import bad_pattern, find_unsupported

CACHE_BYTES = 64 * 2**20  # of compiled grammars
MAX_SOURCE_BYTES = 256 * 1024  # of a schema, expression or grammar as text

# The tool-call parsers whose format can be enforced inside free text, with xgrammar's name for it.
STRICT_FORMATS = {"hermes": "qwen_3", "qwen3_coder": "qwen_3_coder", "llama3_json": "llama"}


class ConstraintError(Exception):
    """A schema, expression or grammar that is wrong, impossible or not supported; the message says what."""


class Grammar:
    """One choice's place in a compiled grammar. Fulfils the engine's Constraint protocol."""

    def __init__(self, compiled: Any, free: np.ndarray, begins_after: bytes, tokens: TokenBytes):
        """`free`: the mask of the text before it begins."""
        self._compiled = compiled
        self._free = free
        self._mask = np.empty_like(free)
        self._tokens = tokens
        self._awaited = begins_after
        self._seen = b""

    @cached_property
    def _matcher(self) -> Any:
        """Made by the first use, on the engine's thread."""
        import xgrammar

        return xgrammar.GrammarMatcher(self._compiled)

    def mask(self) -> np.ndarray:
        """int32 [words]: bit i of word w is set if id 32 * w + i may come next."""
        if self._awaited:
            return self._free
        if not self._matcher.fill_next_token_bitmask(self._mask[None]):
            self._mask.fill(-1)
        return self._mask

    def accept(self, token_id: int) -> None:
        """The id has been sampled. Raises ValueError for one that the mask forbade."""
        if self._awaited:
            self._seen = (self._seen + self._tokens.token_bytes(token_id))[-len(self._awaited) - 256 :]
            if self._awaited in self._seen:
                self._awaited = b""
        elif not self._matcher.accept_token(token_id):
            raise ValueError(f"token {token_id} is outside the grammar")


class Constrainer:
    """Compiles constraints for one tokenizer. Built once; may be used by several threads."""

    def __init__(self, tokens: TokenBytes, tokenizer_size: int, vocab_size: int, stop_ids: Set[int]):
        """`vocab_size`: rows of the model's logits; ids from `tokenizer_size` on are never allowed."""
        self._tokens = tokens
        self._size = min(tokenizer_size, vocab_size)
        self._words = -(-vocab_size // 32)
        self._vocab_size = vocab_size
        self._stop_ids = sorted(token_id for token_id in stop_ids if token_id < vocab_size)
        self._lock = threading.Lock()
        self._compiler: Any = None

    def json_object(self, *, begins_after: str = "") -> Callable[[], Grammar]:
        """Any JSON object."""
        return self.json_schema({"type": "object"}, begins_after=begins_after)

    def json_schema(self, schema: Any, *, begins_after: str = "") -> Callable[[], Grammar]:
        """A value of this schema, on one line or several. `begins_after`: text up to which the answer is free."""
        if (reason := find_unsupported(schema)) is not None:
            raise ConstraintError(reason)
        return self._checked_schema(schema, begins_after)

    def _checked_schema(self, schema: Any, begins_after: str) -> Callable[[], Grammar]:
        """`json_schema` for a schema in which nothing unsupported was found."""
        if not isinstance(schema, dict | bool):
            raise ConstraintError(f"a schema must be a JSON object, not {type(schema).__name__}")
        source = json.dumps(schema)
        # Properties that a schema does not mention are allowed, as JSON Schema says. White space is bounded: a small
        # model otherwise writes newlines until its tokens run out.
        options = {"any_whitespace": True, "max_whitespace_cnt": 8, "strict_mode": False}
        return self._compile("compile_json_schema", source, begins_after, **options)

    def regex(self, pattern: str, *, begins_after: str = "") -> Callable[[], Grammar]:
        """The whole answer matches the expression."""
        if (reason := bad_pattern(pattern)) is not None:
            raise ConstraintError(reason)
        return self._compile("compile_regex", pattern, begins_after)

    def choice(self, options: Sequence[str], *, begins_after: str = "") -> Callable[[], Grammar]:
        """The answer is one of these texts."""
        if not options:
            raise ConstraintError("there must be at least one choice")
        # JSON's escapes are those of the grammar's strings.
        rule = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
        return self._compile("compile_grammar", f"root ::= {rule}", begins_after)

    def grammar(self, source: str, *, begins_after: str = "") -> Callable[[], Grammar]:
        """The answer is derived from the rule `root` of a grammar in GBNF notation."""
        return self._compile("compile_grammar", source, begins_after)

    def named_call(self, tool: Mapping[str, Any], *, begins_after: str = "") -> Callable[[], Grammar]:
        """The answer is the arguments of this function (`parse.tools.forced.NamedCall`)."""
        _check_parameters(tool)
        return self._checked_schema(_parameters(tool), begins_after)

    def required_calls(
        self, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True, begins_after: str = ""
    ) -> Callable[[], Grammar]:
        """The answer is a list of calls of these functions, at least one (`parse.tools.forced.RequiredCalls`)."""
        calls, definitions = [], {}
        for index, tool in enumerate(tools):
            _check_parameters(tool)
            schema, moved = _relocated(_parameters(tool), f"tool{index}")
            definitions.update(moved)
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": tool["function"]["name"]}, "parameters": schema},
                    "required": ["name", "parameters"],
                    "additionalProperties": False,
                }
            )
        listed: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "$defs": definitions}
        if not parallel:
            listed["maxItems"] = 1
        return self.json_schema(listed, begins_after=begins_after)

    def strict_tools(
        self, tools: Sequence[Mapping[str, Any]], tool_parser: str, *, begins_after: str = ""
    ) -> Callable[[], Grammar]:
        """Free text in which each tool call holds to its function's schema, if that one is `strict`."""
        name = STRICT_FORMATS.get(tool_parser)
        if name is None:
            known = ", ".join(sorted(STRICT_FORMATS))
            raise ConstraintError(f"strict tools can be enforced for the formats {known}, not for {tool_parser}")
        for tool in tools:
            if tool["function"].get("strict"):
                _check_parameters(tool)
        import xgrammar

        tag = xgrammar.get_model_structural_tag(name, [dict(tool) for tool in tools], "auto", reasoning=False)
        return self._compile("compile_structural_tag", tag, begins_after, may_end_before=True)

    def _compile(
        self, method: str, source: Any, begins_after: str, *, may_end_before: bool = False, **options: Any
    ) -> Callable[[], Grammar]:
        """`may_end_before`: the answer may be over before it has begun, in the reasoning."""
        if isinstance(source, str) and len(source.encode()) > MAX_SOURCE_BYTES:
            raise ConstraintError(f"longer than the {MAX_SOURCE_BYTES:,} bytes that are compiled")
        with self._lock:
            compiler = self._ready_compiler()
            try:
                compiled = getattr(compiler, method)(source, **options)
            except (RuntimeError, ValueError) as error:
                raise ConstraintError(_reason(error)) from None
        free = np.full(self._words, -1, np.int32)
        for token_id in () if may_end_before else self._stop_ids:
            free.view(np.uint32)[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        tokens, awaited = self._tokens, begins_after.encode()
        return lambda: Grammar(compiled, free, awaited, tokens)

    def _ready_compiler(self) -> Any:
        if self._compiler is None:
            import xgrammar

            # Control tokens are no text, so no grammar can ask for them: xgrammar knows them by their empty bytes.
            vocabulary = [
                b"" if self._tokens.is_special(token_id) else self._tokens.token_bytes(token_id)
                for token_id in range(self._size)
            ]
            info = xgrammar.TokenizerInfo(
                vocabulary, xgrammar.VocabType.RAW, vocab_size=self._vocab_size, stop_token_ids=self._stop_ids
            )
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)
        return self._compiler


def _parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments; one without parameters takes none."""
    return tool["function"].get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _check_parameters(tool: Mapping[str, Any]) -> None:
    if (reason := find_unsupported(_parameters(tool))) is not None:
        raise ConstraintError(f"function {tool['function']['name']!r}: {reason}")


def _relocated(schema: dict[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema to be put inside another: its references point to definitions of its own under the outer `$defs`."""

    def move(value: Any) -> Any:
        if isinstance(value, list):
            return [move(item) for item in value]
        if not isinstance(value, dict):
            return value
        moved = {key: move(item) for key, item in value.items()}
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = f"#/$defs/{prefix}" + reference[1:]
        return moved

    moved = move(schema)
    return ({"$ref": f"#/$defs/{prefix}"}, {prefix: moved}) if "#/$defs/" in json.dumps(moved) else (moved, {})


def _reason(error: Exception) -> str:
    """xgrammar's message without its time stamp, source line and code."""
    text = str(error).strip().split("\n")[0]
    return re.sub(r"^\[[\d:]+\] \S+: |Check failed: \(.*\) is false: ", "", text).rstrip(".")
