"""All parsers by name, and which of them a chat template asks for. Names follow vLLM's where it has the parser."""

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from tokenline.parse import reasoning
from tokenline.parse.delta import OutputParser
from tokenline.parse.harmony import HarmonyReader
from tokenline.parse.parser import Parser, PlainParser, Reader
from tokenline.parse.reasoning import ReasoningFormat, ReasoningReader
from tokenline.parse.sink import new_call_id
from tokenline.parse.tools import gemma, xml_formats
from tokenline.parse.tools.forced import NamedCallReader, RequiredCallsReader
from tokenline.parse.tools.gemma import GemmaCalls, GemmaFormat
from tokenline.parse.tools.json_calls import HERMES, JsonCalls, JsonFormat
from tokenline.parse.tools.llama3 import Llama3Calls
from tokenline.parse.tools.minimax_m3 import MinimaxM3Calls
from tokenline.parse.tools.named_calls import DeepSeekCalls, FunctionTagCalls, KimiCalls, MistralCalls
from tokenline.parse.tools.named_objects import ApertusCalls
from tokenline.parse.tools.pythonic import PythonicCalls, PythonicFormat
from tokenline.parse.tools.recipients import FunctionaryCalls
from tokenline.parse.tools.schema import ToolSchemas
from tokenline.parse.tools.xlam import XlamCalls
from tokenline.parse.tools.xml_calls import XmlCalls
from tokenline.parse.tools.xml_formats import XmlFormat

Tools = Sequence[Mapping[str, Any]]
HARMONY_TOOLS, HARMONY_REASONING = "openai", "openai_gptoss"
FINAL_CHANNEL = "<|channel|>final<|message|>"


def _json(*begin: str, end: str | None = None) -> Callable[[ToolSchemas], Reader]:
    return lambda _: JsonCalls(JsonFormat(begin, end))


def _xml(form: XmlFormat) -> Callable[[ToolSchemas], Reader]:
    return lambda schemas: XmlCalls(form, schemas)


def _gemma(form: GemmaFormat) -> Callable[[ToolSchemas], Reader]:
    return lambda schemas: GemmaCalls(form, schemas)


def _pythonic(
    begin: str | None = None, end: str | None = None, *, bare: bool = False
) -> Callable[[ToolSchemas], Reader]:
    return lambda schemas: PythonicCalls(PythonicFormat(begin, end, bare), schemas)


_TOOLS: Mapping[str, Callable[[ToolSchemas], Reader]] = MappingProxyType(
    {
        "hermes": lambda schemas: JsonCalls(HERMES, bare=schemas.allow_unmarked),
        "qwen3_coder": _xml(xml_formats.QWEN3_CODER),
        "qwen3_xml": _xml(xml_formats.QWEN3_CODER),
        "seed_oss": _xml(xml_formats.SEED_OSS),
        "minimax_m2": _xml(xml_formats.MINIMAX_M2),
        "glm45": _xml(xml_formats.GLM45),
        "glm47": _xml(xml_formats.GLM45),
        "deepseek_v3": lambda _: DeepSeekCalls(),
        "deepseek_v31": lambda _: DeepSeekCalls(),
        "deepseek_v32": _xml(xml_formats.DEEPSEEK_V32),
        "deepseek_v4": _xml(xml_formats.DEEPSEEK_V4),
        "kimi_k2": KimiCalls,
        "gemma4": _gemma(gemma.GEMMA4),
        "functiongemma": _gemma(gemma.FUNCTION_GEMMA),
        "mistral": lambda _: MistralCalls(),
        "llama3_json": Llama3Calls,
        "llama4_json": Llama3Calls,
        "pythonic": _pythonic(bare=True),
        "llama4_pythonic": _pythonic("<|python_start|>", "<|python_end|>", bare=True),
        "lfm2": _pythonic("<|tool_call_start|>", "<|tool_call_end|>"),
        "olmo3": _pythonic("<function_calls>", "</function_calls>"),
        "granite": _json("<|tool_call|>", "<tool_call>", end="</tool_call>"),
        "granite-20b-fc": _json("<function_call>"),
        "phi4_mini_json": _json("functools", "<|tool_call|>", end="<|/tool_call|>"),
        "jamba": _json("<tool_calls>", end="</tool_calls>"),
        "hunyuan_a13b": _json("<tool_calls>", end="</tool_calls>"),
        "minimax": _json("<tool_calls>", end="</tool_calls>"),
        "longcat": _json("<longcat_tool_call>", end="</longcat_tool_call>"),
        "gigachat3": _json("function call<|role_sep|>", "<|function_call|>"),
        "nemotron_v2": _json("<TOOLCALL>", end="</TOOLCALL>"),
        "cohere": _json("<|START_ACTION|>", end="<|END_ACTION|>"),
        "command_r": _json("Action:", end="```"),
        "functionary_v3_1": lambda _: FunctionTagCalls(),
        "functionary_v3_2": lambda _: FunctionaryCalls(),
        "xlam": lambda _: XlamCalls(),
        "minicpm5": _xml(xml_formats.MINICPM5),
        "minimax_m3": MinimaxM3Calls,
        "kimi_k3": _xml(xml_formats.KIMI_K3),
        "step3": _xml(xml_formats.STEP3),
        "step3p5": _xml(xml_formats.QWEN3_CODER),
        "hy_v3": _xml(xml_formats.hunyuan()),
        "hy_v3_opensource": _xml(xml_formats.hunyuan(":opensource")),
        "ernie45": lambda _: JsonCalls(HERMES),
        "apertus": lambda _: ApertusCalls(),
        "internlm": _json("<|action_start|><|plugin|>", end="<|action_end|>"),
    }
)

_REASONING: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        "deepseek_r1": reasoning.THINK_OPENED,
        "deepseek_v3": reasoning.THINK,
        "qwen3": reasoning.THINK,
        "glm45": reasoning.THINK,
        "kimi_k2": reasoning.THINK,
        "minimax_m2": reasoning.THINK_OPENED,
        "mistral": reasoning.MISTRAL,
        "seed_oss": reasoning.SEED_OSS,
        "granite": reasoning.GRANITE,
        "hunyuan_a13b": reasoning.HUNYUAN,
        "gemma4": reasoning.GEMMA4,
        "apriel": reasoning.APRIEL,
        "cohere": reasoning.COHERE,
        "kimi_k3": reasoning.KIMI_K3,
        "minimax_m3": reasoning.MINIMAX_M3,
        "hy_v3": reasoning.HUNYUAN_V3,
        "ernie45": reasoning.ERNIE45,
        "apertus": reasoning.APERTUS,
        "step3": reasoning.THINK_OPENED,
        "step3p5": reasoning.THINK_OPENED,
    }
)


# Tags around the calls or the answer that mean nothing by themselves.
_DROPPED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "step3": (
            *("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
            *("<｜tool_sep｜>", "function<｜tool_sep｜>"),
        ),
        "kimi_k3": reasoning.KIMI_K3.dropped,
    }
)


def tool_parsers() -> list[str]:
    """The names that `make_parser` takes as `tool_parser`."""
    return sorted([*_TOOLS, HARMONY_TOOLS])


def reasoning_parsers() -> list[str]:
    """The names that `make_parser` takes as `reasoning_parser`."""
    return sorted([*_REASONING, HARMONY_REASONING])


def make_parser(
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    tools: Tools | None = None,
    prompt_end: str = "",
    control_tokens: Set[str] | None = None,
    forced: str | None = None,
) -> OutputParser:
    """A parser for one answer. Raises ValueError for a name that is not known.

    tools: the request's tools in OpenAI's form; some formats need their schemas to know types.
    prompt_end: the rendered prompt, or its last characters: whether reasoning was opened there, and harmony's header.
    control_tokens: texts of the vocabulary's control tokens; None for a raw text (see Parser).
    forced: the answer, after reasoning, is JSON without markers because constrained decoding has made it so: of the
        named function's arguments, or with "" a list of calls ("required"). Harmony's are messages like any others.
    """
    if tool_parser is not None and tool_parser not in tool_parsers():
        raise ValueError(f"unknown tool parser {tool_parser!r}; there are: {', '.join(tool_parsers())}")
    if reasoning_parser is not None and reasoning_parser not in reasoning_parsers():
        raise ValueError(f"unknown reasoning parser {reasoning_parser!r}; there are: {', '.join(reasoning_parsers())}")

    schemas = ToolSchemas(tools)
    readers: list[Reader] = []
    dropped: tuple[str, ...] = ()
    harmony = uses_harmony(tool_parser, reasoning_parser)
    if reasoning_parser is not None and reasoning_parser != HARMONY_REASONING:
        form = _REASONING[reasoning_parser]
        readers.append(ReasoningReader(form, prompt_end))
        dropped = form.dropped
    dropped = tuple(dict.fromkeys([*dropped, *_DROPPED.get(tool_parser or "", ())]))
    if harmony:
        readers.append(HarmonyReader(prompt_end, tools=tool_parser is not None or forced is not None))
    elif forced is not None:
        readers.append(NamedCallReader(forced) if forced else RequiredCallsReader())
    elif tool_parser is not None:
        readers.append(_TOOLS[tool_parser](schemas))
    if not readers:
        return PlainParser()
    new_id = _mistral_id if tool_parser == "mistral" else new_call_id
    return Parser(*readers, control_tokens=control_tokens, dropped=dropped, new_id=new_id, schemas=schemas)


def reasoning_before(reasoning_parser: str | None, prompt_end: str) -> tuple[ReasoningFormat, bool] | None:
    """The reasoning that an answer to this prompt may begin with, and whether the prompt has opened it; None where
    there is none. For constrained decoding. (Harmony: see `uses_harmony`.)
    """
    if reasoning_parser is None or reasoning_parser not in _REASONING:
        return None
    form = _REASONING[reasoning_parser]
    reader = ReasoningReader(form, prompt_end)
    return None if reader.closed else (form, reader.opened)


def uses_harmony(tool_parser: str | None, reasoning_parser: str | None) -> bool:
    """Whether answers are made of messages with channels."""
    return tool_parser == HARMONY_TOOLS or reasoning_parser == HARMONY_REASONING


def tool_markers(tool_parser: str) -> tuple[str, ...]:
    """The markers of a parser's format; calls begin with the first."""
    return () if tool_parser == HARMONY_TOOLS else tuple(_TOOLS[tool_parser](ToolSchemas(None)).markers)


def _mistral_id() -> str:
    """Mistral's templates refuse any other form."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


# What a template must contain, in the order in which it is looked for: a template often names more than one format.
_TOOL_SIGNS: tuple[tuple[str, str | None], ...] = (
    (r"<\|channel\|>(?s:.*)<\|call\|>|<\|call\|>(?s:.*)<\|channel\|>", HARMONY_TOOLS),
    (r"｜DSML｜tool_calls>|dsml_token \+ 'tool_calls>", "deepseek_v4"),
    (r"｜DSML｜", "deepseek_v32"),
    (r"<\|tool_call>", "gemma4"),
    (r"\]<\]minimax\[>\[", "minimax_m3"),  # its tags look like Hermes'
    (r"open_tag\('tools'\)|<\|open\|>tools", "kimi_k3"),
    (r"<tool_sep:opensource>|':opensource'(?s:.*)<tool_sep\{\}>", "hy_v3_opensource"),
    (r"<arg_key(?s:.*)<tool_sep|<tool_sep(?s:.*)<arg_key", "hy_v3"),
    (r'<function name="', "minicpm5"),
    (r"<steptml:invoke", "step3"),
    (r"<start_function_call>", "functiongemma"),
    (r"<\|tools_prefix\|>", "apertus"),
    (r"<\|action_start\|>", "internlm"),
    (r">>>all", "functionary_v3_2"),
    (r'make calls in a single JSON array|"name": "tool_call_name"', "xlam"),
    (r"Action:\\n```json", "command_r"),
    (r"\[func_name1\(", "pythonic"),
    (r"<\|function_call_library\|>", "granite-20b-fc"),
    (r"<｜tool▁calls▁begin｜>(?s:.*)```json", "deepseek_v3"),
    (r"<｜tool▁calls▁begin｜>", "deepseek_v31"),
    (r"<\|tool_calls_section_begin\|>", "kimi_k2"),
    (r"\[TOOL_CALLS\]", "mistral"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"<seed:tool_call>", "seed_oss"),
    (r"<arg_key>", "glm45"),
    (r"<function=(?s:.*)<parameter=", "qwen3_coder"),
    (r"<TOOLCALL>", "nemotron_v2"),
    (r"<longcat_tool_call>", "longcat"),
    (r"<\|START_ACTION\|>", "cohere"),
    (r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[", "lfm2"),
    (r"<\|python_start\|>", "llama4_pythonic"),
    (r"functools\[", "phi4_mini_json"),
    (r"function call(?s:.*)<\|role_sep\|>|<\|function_call\|>", "gigachat3"),
    (r"<\|tool_call\|>", "granite"),
    (r"<tool_calls>", "jamba"),
    (r"<function_calls>", "olmo3"),
    (r"<tool_call>", "hermes"),
    (r"start_tag => `<function`|<function=", "functionary_v3_1"),
    (r'<\|python_tag\|>|"parameters": dictionary of argument name', "llama3_json"),
)

_REASONING_SIGNS: tuple[tuple[str, str | None], ...] = (
    (r"<\|channel\|>(?s:.*)analysis|analysis(?s:.*)<\|channel\|>", HARMONY_REASONING),
    (r"\[THINK\]", "mistral"),
    (r"open_tag\('think'|<\|open\|>think", "kimi_k3"),
    (r"<mm:think>", "minimax_m3"),
    (r"<think:opensource>|<think\{\}>", "hy_v3"),
    (r"<\|inner_prefix\|>", "apertus"),
    (r"\[BEGIN FINAL RESPONSE\]", "apriel"),
    (r"<seed:think>", "seed_oss"),
    (r"<\|START_THINKING\|>", "cohere"),
    (r"<\|channel>thought", "gemma4"),
    (r"write your response between <response>|Here is my thought process:", "granite"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"<arg_key>(?s:.*)<think>|<think>(?s:.*)<arg_key>", "glm45"),
    (r"<\|tool_calls_section_begin\|>(?s:.*)<think>", "kimi_k2"),
    (r"<think>(?s:.*)<answer>", "hunyuan_a13b"),
    (r"(?s)(?=.*<｜Assistant｜>)(?=.*(enable_thinking|thinking is defined))|｜DSML｜", "deepseek_v3"),  # has a switch
    (r"<｜Assistant｜>(?s:.*)think>", "deepseek_r1"),
    (r"</?think>", "qwen3"),
)


def detect(template_text: str) -> tuple[str | None, str | None]:
    """The names of the tool parser and of the reasoning parser that fit a chat template; None where it has none."""
    return _first(_TOOL_SIGNS, template_text), _first(_REASONING_SIGNS, template_text)


def _first(signs: Sequence[tuple[str, str | None]], text: str) -> str | None:
    return next((name for pattern, name in signs if re.search(pattern, text)), None)
