"""The tags of the XML-like formats that `xml_calls.py` reads, each as its model's chat template writes them."""

from dataclasses import dataclass, replace

from tokenline.parse.tools.schema import ANY, STRING


@dataclass(frozen=True, slots=True)
class XmlFormat:
    """The tags of a format. `section` is empty where nothing stands around the calls, `call` where nothing stands
    around a call within the section (GLM). After the quote that ends a name or a key there may be attributes.
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
    value_lines: bool = False  # values stand on lines of their own: one line break on either side is no part of them
    cdata: bool = False  # a value may stand in `<![CDATA[..]]>`
    undeclared: frozenset[str] = STRING  # types of a parameter of which the schema says nothing
    json: tuple[str, str] | None = None  # the tags around all arguments as JSON, which may stand instead of parameters


QWEN3_CODER = XmlFormat(
    "<tool_call>",
    "</tool_call>",
    "<function=",
    ">",
    "</function>",
    "<parameter=",
    ">",
    "</parameter>",
    value_lines=True,
)
SEED_OSS = replace(QWEN3_CODER, section="<seed:tool_call>", section_end="</seed:tool_call>", value_lines=False)
MINIMAX_M2 = XmlFormat(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="',
    '">',
    "</invoke>",
    '<parameter name="',
    '">',
    "</parameter>",
)
DEEPSEEK_V32 = XmlFormat(
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    '<｜DSML｜invoke name="',
    '">',
    "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="',
    ">",
    "</｜DSML｜parameter>",
)
DEEPSEEK_V4 = replace(DEEPSEEK_V32, section="<｜DSML｜tool_calls>", section_end="</｜DSML｜tool_calls>")
GLM45 = XmlFormat(
    "<tool_call>",
    "</tool_call>",
    "",
    "",
    "",
    "<arg_key>",
    "</arg_key>",
    "</arg_value>",
    value="<arg_value>",
    undeclared=ANY,
)
MINICPM5 = XmlFormat("", "", '<function name="', '">', "</function>", '<param name="', '">', "</param>", cdata=True)
STEP3 = XmlFormat(
    "",
    "",
    '<steptml:invoke name="',
    '">',
    "</steptml:invoke>",
    '<steptml:parameter name="',
    '">',
    "</steptml:parameter>",
)
KIMI_K3 = XmlFormat(
    "<|open|>tools<|sep|>",
    "<|close|>tools<|sep|>",
    '<|open|>call tool="',
    "<|sep|>",
    "<|close|>call<|sep|>",
    '<|open|>argument key="',
    "<|sep|>",
    "<|close|>argument<|sep|>",
    json=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
)


def hunyuan(suffix: str = "") -> XmlFormat:
    """Hunyuan V3. Its open models have a suffix in all tags: `<tool_call:opensource>`."""
    return XmlFormat(
        f"<tool_calls{suffix}>",
        f"</tool_calls{suffix}>",
        f"<tool_call{suffix}>",
        f"<tool_sep{suffix}>",
        f"</tool_call{suffix}>",
        f"<arg_key{suffix}>",
        f"</arg_key{suffix}>",
        f"</arg_value{suffix}>",
        value=f"<arg_value{suffix}>",
        undeclared=ANY,
    )
