"""/tokenize, /detokenize and /apply-template: the line without the engine."""

import pytest

from tests.server.conftest import CHAT, TEXT, Served
from tests.server.helpers import user

MESSAGES = [
    {"role": "system", "content": "你是助手"},
    *user("今天星期几 😀"),
    {"role": "assistant", "content": "Monday"},
]


async def test_the_ids_of_a_chat_are_those_that_the_engine_is_given(served: Served):
    for more in ({}, {"continue_final_message": True}, {"add_generation_prompt": False}):
        counted = (await served.http.post("/tokenize", json={"messages": MESSAGES, **more})).json()
        body = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True, **more}
        answer = (await served.http.post(CHAT, json=body)).json()
        assert counted == {
            "count": answer["usage"]["prompt_tokens"],
            "max_model_len": 4096,
            "tokens": answer["prompt_token_ids"],
        }


async def test_the_ids_of_a_text_are_those_that_the_engine_is_given(served: Served):
    text = "C'est la vie 你好 👩‍💻<|im_end|>"
    counted = (await served.http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    answer = (await served.http.post(TEXT, json={"prompt": text, "max_tokens": 1, "return_token_ids": True})).json()
    assert counted["tokens"] == answer["choices"][0]["prompt_token_ids"]
    assert counted["count"] == len(counted["tokens"]) == len(counted["token_strs"])
    back = (await served.http.post("/detokenize", json={"tokens": counted["tokens"]})).json()
    assert back == {"prompt": text}


async def test_the_text_of_a_chat(served: Served):
    body = {"messages": MESSAGES[:2]}
    text = (await served.http.post("/apply-template", json=body)).json()["prompt"]
    expected = (
        "<|im_start|>system\n你是助手<|im_end|>\n<|im_start|>user\n今天星期几 😀<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text == expected
    bare = (await served.http.post("/apply-template", json={**body, "add_generation_prompt": False})).json()["prompt"]
    assert expected == bare + "<|im_start|>assistant\n"


async def test_a_text_longer_than_the_context_can_be_counted(served: Served):
    for body in ({"prompt": "word " * 50_000}, {"messages": user("word " * 50_000)}):
        counted = (await served.http.post("/tokenize", json=body)).json()
        assert counted["count"] > counted["max_model_len"]


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": user("a")}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
        ("/tokenize", {"messages": user("a"), "tools": [5]}, "tools[0]"),
        ("/detokenize", {"tokens": [600]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
        ("/detokenize", {"tokens": "12"}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": user("a"), "chat_template_kwargs": 3}, "chat_template_kwargs"),
        (
            "/apply-template",
            {"messages": user("a"), "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
async def test_bad_input(served: Served, url: str, body: dict, param: str):
    response = await served.http.post(url, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_no_tokens_are_no_text(served: Served):
    assert (await served.http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
    assert (await served.http.post("/tokenize", json={"prompt": ""})).json()["count"] == 0
