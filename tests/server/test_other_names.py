"""Fields under other servers' names (r2-10): honoured as what they are, or a 400 that names them; never ignored."""

import json
from typing import Any

import pytest

from tests.server.conftest import CHAT, TEXT, Serve, Served, in_module_loop
from tests.server.helpers import user
from tokenline.server.body import parse_body
from tokenline.server.openai.read import chat_input, chat_request
from tokenline.server.openai.unsupported import CHAT as CHAT_TABLE
from tokenline.server.openai.unsupported import COMPLETION as COMPLETION_TABLE
from tokenline.server.openai.wire import ChatBody
from tokenline.service.request import ChatRequest

AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["age"],
    "additionalProperties": False,
}
YES = 'root ::= "yes" | "no"'


async def content(served: Served, **more: Any) -> str:
    body = {"messages": user("How old?"), "max_tokens": 30, "temperature": 1.2, "seed": 5, **more}
    response = await served.http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "constraint",
    [
        {"json_schema": AGE},
        {"json_schema": json.dumps(AGE)},
        {"json_schema": {"name": "age", "schema": AGE}},
        {"response_format": {"type": "json_object", "schema": AGE}},
        {"response_format": {"type": "json_schema", "schema": AGE}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE}}},
        {"response_format": {"type": "json_object", "json_schema": {"schema": AGE}}},
        {"response_format": {"type": "json", "value": AGE}},
        {"grammar": {"type": "json", "value": AGE}},
        {"guided_json": json.dumps(AGE)},
        {"format": AGE},
        {"structured_outputs": {"json": AGE, "regex": None, "json_object": False, "disable_fallback": False}},
    ],
    ids=lambda constraint: json.dumps(constraint)[:60],
)
async def test_a_schema(served: Served, constraint: dict[str, Any]):
    assert json.loads(await content(served, **constraint))["age"] in range(10)


@pytest.mark.parametrize(
    "constraint",
    [
        {"grammar": YES},
        {"ebnf": YES},
        {"guided_grammar": YES},
        {"regex": "(yes|no)"},
        {"response_format": {"type": "regex", "value": "(yes|no)"}},
        {"response_format": {"type": "regex", "pattern": "(yes|no)"}},
        {"response_format": {"type": "grammar", "grammar": YES}},
        {"grammar": {"type": "regex", "value": "(yes|no)"}},
    ],
    ids=lambda constraint: json.dumps(constraint)[:60],
)
async def test_yes_or_no(served: Served, constraint: dict[str, Any]):
    assert await content(served, **constraint) in ("yes", "no")
    text = await served.http.post(TEXT, json={"prompt": "a", "max_tokens": 9, **constraint})
    assert text.json()["choices"][0]["text"] in ("yes", "no")


@pytest.mark.parametrize("constraint", [{"json_mode": True}, {"format": "json"}, {"guided_json_object": True}])
def test_any_object(constraint: dict[str, Any]):
    output = requested(**constraint).output
    assert getattr(output, "schema", None) == {"type": "object"}


@pytest.mark.parametrize(
    "nothing",
    [
        {"json_mode": False}, {"format": ""}, {"grammar": ""}, {"json_schema": ""}, {"ebnf": None}, {"regex": ""},
        {"response_format": {"type": "text", "schema": None}}, {"structured_outputs": {"json": None}},
    ],
)  # fmt: skip
def test_a_constraint_that_asks_for_nothing(nothing: dict[str, Any]):
    assert requested(**nothing).output is None


@in_module_loop
@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        ({"json_schema": AGE, "grammar": YES}, "grammar"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
        ({"response_format": {"type": "text", "schema": AGE}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "regex"}}, "response_format.regex"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format.type"),
        ({"json_schema": [AGE]}, "json_schema"),
        ({"json_schema": "{"}, "json_schema"),
        ({"grammar": 3}, "grammar"),
        ({"ebnf": "root ::= nothing"}, "ebnf"),
        ({"regex": "("}, "regex"),
        ({"format": "yaml"}, "format"),
        ({"json_mode": "yes"}, "json_mode"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
async def test_a_constraint_that_cannot_be(shared: Served, constraint: dict[str, Any], param: str):
    response = await shared.http.post(CHAT, json={"messages": user("a"), "max_tokens": 4, **constraint})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def requested(**more: Any) -> ChatRequest:
    body = parse_body(json.dumps({"messages": user("a"), **more}).encode(), ChatBody)
    return chat_request(body, "1", None)


def test_numbers_under_other_names():
    assert requested(n_predict=4).limits.max_tokens == 4
    assert requested(max_new_tokens=4).limits.max_tokens == 4
    assert requested(min_new_tokens=3).limits.min_tokens == 3
    assert requested(repeat_penalty=1.3).sampling.repetition_penalty == 1.3
    assert requested(random_seed=7).sampling.seed == 7
    assert requested(n_cmpl=2).limits.n == 2
    assert requested(stop_sequences=["a"]).limits.stop == ("a",)
    assert requested(n_predict=4, max_tokens=4).limits.max_tokens == 4
    assert requested(n_predict=None).limits.max_tokens is None


def test_no_limit_and_no_seed():
    """llama.cpp's -1."""
    assert requested(max_tokens=-1).limits.max_tokens is None
    assert requested(n_predict=-1).limits.max_tokens is None
    assert requested(seed=-1).sampling.seed is None


@pytest.mark.parametrize("bias", [{"5": -100, "7": 1.5}, [[5, False], [7, 1.5]], {"5": False, "7": 1.5}])
def test_logit_bias(bias: Any):
    assert requested(logit_bias=bias).sampling.logit_bias == {"5": -100, "7": 1.5}


async def test_n_predict_is_the_maximum(served: Served):
    body = {"messages": user("a"), "n_predict": 4, "ignore_eos": True}
    answer = (await served.http.post(CHAT, json=body)).json()
    assert answer["usage"]["completion_tokens"] == 4
    text = {"prompt": "a", "n_predict": 4, "ignore_eos": True}
    assert (await served.http.post(TEXT, json=text)).json()["usage"]["completion_tokens"] == 4


async def test_a_large_maximum_is_no_fault(serve: Serve):
    """r2-40: agents send a fixed large one; the answer may be as long as there is room."""
    served = await serve(max_model_len=64)
    for most in ({"max_tokens": 32_000}, {"max_completion_tokens": 65_535}, {"max_tokens": -1}, {"n_predict": -1}):
        body = {"messages": user("Hello"), "ignore_eos": True, **most}
        answer = (await served.http.post(CHAT, json=body)).json()
        assert answer["usage"]["total_tokens"] == 64
        assert answer["choices"][0]["finish_reason"] == "length"
    text = (await served.http.post(TEXT, json={"prompt": "Hello", "ignore_eos": True, "max_tokens": -1})).json()
    assert text["usage"]["total_tokens"] == 64


@in_module_loop
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n_predict": "4"}, "n_predict"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_predict": 4, "max_tokens": 5}, "n_predict"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_last_n"),
        ({"random_seed": "x"}, "random_seed"),
        ({"logit_bias": [["Hello", -1]]}, "logit_bias"),
        ({"logit_bias": [[5]]}, "logit_bias"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"mirostat": 2}, "mirostat"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"xtc_probability": 0.1}, "xtc_probability"),
        ({"samplers": ["top_k"]}, "samplers"),
        ({"t_max_predict_ms": 100}, "t_max_predict_ms"),
        ({"options": {"num_predict": 3}}, "options"),
        ({"thinking_budget": 100}, "thinking_budget"),
        ({"reasoning_budget": 100}, "reasoning_budget"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": "yes"}, "thinking"),
        ({"enable_thinking": 1}, "enable_thinking"),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking.type"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"think": "very"}, "think"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
async def test_what_cannot_be_honoured_is_named(shared: Served, fields: dict[str, Any], param: str):
    response = await shared.http.post(CHAT, json={"messages": user("a"), **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert param in response.json()["error"]["message"]


@in_module_loop
@pytest.mark.parametrize(("route", "table"), [(CHAT, CHAT_TABLE), (TEXT, COMPLETION_TABLE)])
async def test_harmless_values_are_accepted(shared: Served, route: str, table: dict[str, Any]):
    start = {"messages": user("a")} if route == CHAT else {"prompt": "a"}
    harmless = {name: refusal.harmless[0] for name, refusal in table.items() if refusal.harmless}
    inert = {"repeat_last_n": 64, "dry_base": 1.75, "cache_prompt": True, "id_slot": -1, "keep_alive": "5m"}
    response = await shared.http.post(route, json={**harmless, **inert, **start, "max_tokens": 1})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "on", "effort"),
    [
        ({"enable_thinking": False}, False, None),
        ({"thinking": True}, True, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "enabled"}}, True, None),
        ({"thinking": {"type": "adaptive"}}, None, None),
        ({"think": False}, False, None),
        ({"think": "low"}, None, "low"),
        ({"reasoning": {"effort": "high"}}, None, "high"),
        ({"reasoning": {"enabled": False}}, False, None),
        ({"reasoning_effort": "none"}, None, "none"),
        ({"reasoning_budget": 0}, False, None),
        ({"thinking_token_budget": -1}, None, None),
        ({"enable_thinking": True, "reasoning_effort": "high"}, True, "high"),
        ({}, None, None),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_thinking(fields: dict[str, Any], on: bool | None, effort: str | None):
    chat = chat_input(parse_body(json.dumps({"messages": user("a"), **fields}).encode(), ChatBody))
    assert (chat.thinking, chat.reasoning_effort) == (on, effort)
