"""How tool parsers' formats are written: the markers, and what stands where between them.

Named as the parsers in `parse.registry`, which read what is let through here. A format that is not here cannot be
enforced. Where it stands beside an answer, its first marker begins a text that is free (`spec.CallsOrAnswer`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class JsonCallFormat:
    """`begin`, JSON objects of a name and arguments, `end`. `many`: "one" object, "list": a list of them, or "lines":
    several with white space between them.
    """

    begin: tuple[str, ...]
    end: str = ""
    many: str = "one"
    name: str = "name"  # its key; "": the name is itself the key of the arguments
    arguments: str = "arguments"
    fence: str = ""  # what stands between `begin` and the calls
    number: str = ""  # a key before the others that holds the call's number in a string


@dataclass(frozen=True, slots=True)
class BareCalls:
    """JSON objects at the start of a line, or behind `tag` with semicolons between them (Llama 3)."""

    tag: str


@dataclass(frozen=True, slots=True)
class NamedCallFormat:
    """`section`, then for each call `begin`, the name, `separator`, the arguments as JSON, `end`; then `section_end`.

    Without a section the calls stand by themselves. Each may be made of text and control tokens.
    """

    begin: str
    separator: str
    end: str = ""
    section: str = ""
    section_end: str = ""
    before_name: str = ""
    numbered: bool = False  # a colon and the call's number behind the name
    # What stands around strings in the model's own spelling of JSON, which has neither escapes nor quotes around keys.
    # Arguments of strict functions are written as JSON all the same.
    quote: str = ""


@dataclass(frozen=True, slots=True)
class PythonCallFormat:
    """Calls as Python, `name(key=value, ..)`: in a list, or (`listed` false) on lines of their own.

    Without `begin` a list stands at the start of a line.
    """

    begin: str = ""
    end: str = ""
    listed: bool = True


@dataclass(frozen=True, slots=True)
class XmlCallFormat:
    """`section`, for each call `call`, the name, `name_end`, its parameters, `call_end`; then `section_end`.

    `section` is empty where nothing stands around the calls, `call` where nothing stands around one in its section.
    """

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
    typed: bool = False  # behind the key it says ` string="true">` of a text, else ` string="false">` of JSON


@dataclass(frozen=True, slots=True)
class ChannelCalls:
    """gpt-oss: a message to `functions.NAME` whose text is the arguments as JSON (see `frame`)."""


CallFormat = JsonCallFormat | BareCalls | NamedCallFormat | PythonCallFormat | XmlCallFormat | ChannelCalls

_QWEN3_CODER = XmlCallFormat(
    *("<tool_call>", "</tool_call>", "<function=", ">", "</function>", "<parameter=", ">", "</parameter>"),
    value_lines=True,
)
_MINIMAX_M2 = XmlCallFormat(
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', '">', "</invoke>"),
    *('<parameter name="', '">', "</parameter>"),
)
_GLM45 = XmlCallFormat(
    *("<tool_call>", "</tool_call>", "", "", "", "<arg_key>", "</arg_key>", "</arg_value>"), value="<arg_value>"
)


def _hunyuan(suffix: str) -> XmlCallFormat:
    return XmlCallFormat(
        *(f"<tool_calls{suffix}>", f"</tool_calls{suffix}>", f"<tool_call{suffix}>", f"<tool_sep{suffix}>"),
        *(f"</tool_call{suffix}>", f"<arg_key{suffix}>", f"</arg_key{suffix}>", f"</arg_value{suffix}>"),
        value=f"<arg_value{suffix}>",
    )


_DEEPSEEK_V32 = XmlCallFormat(
    *("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="', '">', "</｜DSML｜invoke>"),
    *('<｜DSML｜parameter name="', '"', "</｜DSML｜parameter>"),
    typed=True,
)
_TOOL_CALLS = JsonCallFormat(("<tool_calls>",), "</tool_calls>", "list")
_LLAMA = BareCalls("<|python_tag|>")
_DEEPSEEK_V31 = NamedCallFormat(
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)

FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        "hermes": JsonCallFormat(("<tool_call>",), "</tool_call>"),
        "ernie45": JsonCallFormat(("<tool_call>",), "</tool_call>"),
        "internlm": JsonCallFormat(("<|action_start|><|plugin|>",), "<|action_end|>", arguments="parameters"),
        "command_r": JsonCallFormat(("Action:",), "```", "list", "tool_name", "parameters", fence="```json"),
        "apertus": JsonCallFormat(("<|tools_prefix|>",), "<|tools_suffix|>", "list", name=""),
        "longcat": JsonCallFormat(("<longcat_tool_call>",), "</longcat_tool_call>"),
        "nemotron_v2": JsonCallFormat(("<TOOLCALL>",), "</TOOLCALL>", "list"),
        "jamba": _TOOL_CALLS,
        "hunyuan_a13b": _TOOL_CALLS,
        "minimax": JsonCallFormat(("<tool_calls>",), "</tool_calls>", "lines"),
        "phi4_mini_json": JsonCallFormat(("functools", "<|tool_call|>"), many="list"),
        "granite": JsonCallFormat(("<|tool_call|>", "<tool_call>"), many="list"),
        "granite-20b-fc": JsonCallFormat(("<function_call>",)),
        "gigachat3": JsonCallFormat(("function call<|role_sep|>", "<|function_call|>")),
        "cohere": JsonCallFormat(
            ("<|START_ACTION|>",), "<|END_ACTION|>", "list", "tool_name", "parameters", number="tool_call_id"
        ),
        "llama3_json": _LLAMA,
        "llama4_json": _LLAMA,
        "pythonic": PythonCallFormat(),
        "llama4_pythonic": PythonCallFormat("<|python_start|>", "<|python_end|>"),
        "lfm2": PythonCallFormat("<|tool_call_start|>", "<|tool_call_end|>"),
        "olmo3": PythonCallFormat("<function_calls>", "</function_calls>", listed=False),
        "mistral": NamedCallFormat("[TOOL_CALLS]", "[ARGS]"),
        "functionary_v3_1": NamedCallFormat("<function=", ">", "</function>"),
        "deepseek_v31": _DEEPSEEK_V31,
        "deepseek_v3": replace(
            _DEEPSEEK_V31,
            before_name="function<｜tool▁sep｜>",
            separator="\n```json\n",
            end="\n```<｜tool▁call▁end｜>",
        ),
        "gemma4": NamedCallFormat("<|tool_call>", separator="", end="<tool_call|>", before_name="call:", quote='<|"|>'),
        "deepseek_v32": _DEEPSEEK_V32,
        "deepseek_v4": replace(_DEEPSEEK_V32, section="<｜DSML｜tool_calls>", section_end="</｜DSML｜tool_calls>"),
        "functiongemma": NamedCallFormat(
            "<start_function_call>", separator="", end="<end_function_call>", before_name="call:", quote="<escape>"
        ),
        "kimi_k2": NamedCallFormat(
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            before_name="functions.",
            numbered=True,
        ),
        "qwen3_coder": _QWEN3_CODER,
        "qwen3_xml": _QWEN3_CODER,
        "step3p5": _QWEN3_CODER,
        "minicpm5": XmlCallFormat(
            *("", "", '<function name="', '">', "</function>", '<param name="', '">', "</param>"),
        ),
        "step3": XmlCallFormat(
            *("", "", '<steptml:invoke name="', '">', "</steptml:invoke>"),
            *('<steptml:parameter name="', '">', "</steptml:parameter>"),
        ),
        "hy_v3": _hunyuan(""),
        "hy_v3_opensource": _hunyuan(":opensource"),
        "seed_oss": replace(
            _QWEN3_CODER, section="<seed:tool_call>", section_end="</seed:tool_call>", value_lines=False
        ),
        "minimax_m2": _MINIMAX_M2,
        "glm45": _GLM45,
        "glm47": _GLM45,
        "openai": ChannelCalls(),
    }
)
