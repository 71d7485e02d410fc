"""How tool parsers' formats are written: the markers, and what stands where between them.

Named as the parsers in `parse.registry`, which read what is let through here. Formats of calls that are written as
Python, and those whose arguments carry types of their own, are not here: strict tools cannot be enforced in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class JsonCallFormat:
    """`begin`, one JSON object of a name and arguments (`listed`: a list of them), `end`."""

    begin: tuple[str, ...]
    end: str = ""
    listed: bool = False
    name: str = "name"
    arguments: str = "arguments"


@dataclass(frozen=True, slots=True)
class BareCalls:
    """JSON objects at the start of a line, or behind `tag` with semicolons between them (Llama 3)."""

    tag: str


@dataclass(frozen=True, slots=True)
class NamedCallFormat:
    """`section`, then for each call `begin`, the name, `separator`, the arguments as JSON, `end`; then `section_end`.

    Without a section the calls stand by themselves.
    """

    begin: str
    separator: str
    end: str = ""
    section: str = ""
    section_end: str = ""
    before_name: str = ""
    numbered: bool = False  # a colon and the call's number behind the name


@dataclass(frozen=True, slots=True)
class XmlCallFormat:
    """`section`, for each call `call`, the name, `name_end`, its parameters, `call_end`; then `section_end`."""

    section: str
    section_end: str
    call: str
    name_end: str
    call_end: str
    parameter: str
    key_end: str
    value_end: str
    value: str = ""  # the tag before the value, where it has one of its own
    value_lines: bool = False  # values stand on lines of their own


_QWEN3_CODER = XmlCallFormat(
    *("<tool_call>", "</tool_call>", "<function=", ">", "</function>", "<parameter=", ">", "</parameter>"),
    value_lines=True,
)
_SEED_OSS = XmlCallFormat(
    *("<seed:tool_call>", "</seed:tool_call>", "<function=", ">", "</function>", "<parameter=", ">", "</parameter>"),
    value_lines=True,
)
_MINIMAX_M2 = XmlCallFormat(
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', '">', "</invoke>"),
    *('<parameter name="', '">', "</parameter>"),
)
_GLM45 = XmlCallFormat(
    *("<tool_call>", "</tool_call>", "", "", "", "<arg_key>", "</arg_key>", "</arg_value>"), value="<arg_value>"
)
_TOOL_CALLS = JsonCallFormat(("<tool_calls>",), "</tool_calls>", listed=True)
_LLAMA = BareCalls("<|python_tag|>")

FORMATS: Mapping[str, JsonCallFormat | BareCalls | NamedCallFormat | XmlCallFormat] = MappingProxyType(
    {
        "hermes": JsonCallFormat(("<tool_call>",), "</tool_call>"),
        "longcat": JsonCallFormat(("<longcat_tool_call>",), "</longcat_tool_call>"),
        "nemotron_v2": JsonCallFormat(("<TOOLCALL>",), "</TOOLCALL>", listed=True),
        "jamba": _TOOL_CALLS,
        "hunyuan_a13b": _TOOL_CALLS,
        "phi4_mini_json": JsonCallFormat(("functools", "<|tool_call|>"), listed=True),
        "granite": JsonCallFormat(("<|tool_call|>", "<tool_call>"), listed=True),
        "llama3_json": _LLAMA,
        "llama4_json": _LLAMA,
        "mistral": NamedCallFormat("[TOOL_CALLS]", "[ARGS]"),
        "functionary_v3_1": NamedCallFormat("<function=", ">", "</function>"),
        "deepseek_v31": NamedCallFormat(
            *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        "kimi_k2": NamedCallFormat(
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            before_name="functions.",
            numbered=True,
        ),
        "qwen3_coder": _QWEN3_CODER,
        "qwen3_xml": _QWEN3_CODER,
        "seed_oss": _SEED_OSS,
        "minimax_m2": _MINIMAX_M2,
        "glm45": _GLM45,
        "glm47": _GLM45,
    }
)
