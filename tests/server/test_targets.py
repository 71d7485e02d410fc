"""What clients write as target and method: HEAD and OPTIONS (r2-38), odd paths (r2-46), and the routes of llama.cpp."""

import asyncio
import gzip
import json

import pytest

import tokenline
from tests.limits import HANG_S
from tests.server.conftest import CHAT, Serve, Served, in_module_loop
from tests.server.helpers import user
from tokenline.render.chat_input import ChatInput

BODY = {"messages": user("hi"), "max_tokens": 2}


@in_module_loop
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/", "/version", "/stats", "/v1/models/tiny"])
async def test_head_is_get_without_a_body(shared: Served, path: str):
    """r2-38"""
    head, get = await shared.http.head(path), await shared.http.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/stats":
        assert head.headers["content-length"] == get.headers["content-length"]


@in_module_loop
async def test_head_where_there_is_no_get(shared: Served):
    assert (await shared.http.head(CHAT)).status_code == 405
    assert (await shared.http.head("/v1/nothing")).status_code == 404


@in_module_loop
async def test_options(shared: Served):
    reading = "GET, HEAD, OPTIONS"
    for path, allow in (("/health", reading), (CHAT, "OPTIONS, POST"), ("/v1/models/a", reading)):
        response = await shared.http.request("OPTIONS", path)
        assert (response.status_code, response.headers["allow"], response.content) == (204, allow, b"")
    assert (await shared.http.request("OPTIONS", "/v1/nothing")).status_code == 404


@in_module_loop
@pytest.mark.parametrize("path", ["//v1/models", "/v1//models", "/models", "/v1/models/", "/v1/v1/models"])
async def test_paths_of_models(shared: Served, path: str):
    assert (await shared.http.get(f"http://localhost{path}")).status_code == 200


@in_module_loop
@pytest.mark.parametrize("path", ["/chat/completions", "//v1/chat/completions", "/v1/chat/completions/"])
async def test_paths_of_chats(shared: Served, path: str):
    assert (await shared.http.post(f"http://localhost{path}", json=BODY)).status_code == 200


@in_module_loop
async def test_other_paths(shared: Served):
    assert (await shared.http.post("/completions", json={"prompt": "a", "max_tokens": 1})).status_code == 200
    assert (await shared.http.post("/v1/tokenize", json={"prompt": "a"})).status_code == 200
    assert (await shared.http.get("/v1/health")).status_code == 200
    for path in ("/v1", "/v2/models", "/chat", "/v1/v1", "//"):
        assert (await shared.http.get(f"http://localhost{path}")).status_code in (200, 404)


@in_module_loop
@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/embeddings", "/api/chat", "/completion"])
async def test_another_servers_route_is_a_404_that_says_what_to_use(shared: Served, path: str):
    response = await shared.http.post(path, json={"model": "m", "input": "Hi"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "unknown_url"
    assert ";" in error["message"]


@in_module_loop
async def test_the_root_says_who_is_here(shared: Served):
    text = (await shared.http.get("/")).text
    assert tokenline.__version__ in text
    assert "tiny" in text
    assert "/v1" in text


@in_module_loop
async def test_props(shared: Served):
    props = (await shared.http.get("/props")).json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    defaults = shared.app.state.server.service.room.default_sampling
    assert props["default_generation_settings"]["params"]["top_k"] == defaults.top_k
    assert props["total_slots"] == 64
    assert props["model_alias"] == "tiny"
    assert props["chat_template"] == shared.renderer.chats.template().source
    assert props["build_info"].endswith(tokenline.__version__)


@in_module_loop
@pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
async def test_input_tokens(shared: Served, path: str):
    answer = (await shared.http.post(path, json={**BODY, "temperature": 1, "model": "tiny"})).json()
    used = (await shared.http.post(CHAT, json=BODY)).json()["usage"]["prompt_tokens"]
    assert answer == {"object": "response.input_tokens", "input_tokens": used}
    assert used == len(shared.renderer.chat(ChatInput(BODY["messages"])))
    assert (await shared.http.post(path, json={"messages": []})).status_code == 400


@in_module_loop
@pytest.mark.parametrize("given", ["my-request-1", "a" * 128, "trace/1:2=3"])
async def test_a_clients_request_id_is_echoed(shared: Served, given: str, caplog):
    with caplog.at_level("INFO", "tokenline.request"):
        response = await shared.http.post(CHAT, json=BODY, headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] == given
    (record,) = [record for record in caplog.records if record.message == "request"]
    assert record.fields["client_id"] == given
    assert record.fields["id"] == response.json()["id"]
    refused = await shared.http.post(CHAT, json={}, headers={"X-Request-Id": given})
    assert refused.headers["x-request-id"] == given


@in_module_loop
@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "ä".encode(), "a\tb"])
async def test_one_that_is_long_or_odd_is_not(shared: Served, given: str):
    response = await shared.http.post(CHAT, json=BODY, headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] == response.json()["id"]


async def raw(url: str, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """What comes back for these bytes until the server closes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pause_s)
    data = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    return data


async def test_on_the_wire(serve: Serve):
    """r2-46: absolute targets, Expect, chunks, two requests in one packet, HTTP/1.0; r2-38: HEAD has no body."""
    served = await serve(live=True)
    host = served.url.removeprefix("http://").encode()
    body = json.dumps(BODY).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: " + host + b"\r\nContent-Type: application/json\r\n"

    named = b" HTTP/1.1\r\nHost: " + host + b"\r\n"
    last = named + b"Connection: close\r\n\r\n"
    absolute = await raw(served.url, b"GET http://" + host + b"/v1/models" + last)
    assert absolute.startswith(b"HTTP/1.1 200")

    expecting = head + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = await raw(served.url, expecting, body, pause_s=0.05)
    assert answer.startswith(b"HTTP/1.1 100")
    assert b"HTTP/1.1 200" in answer

    packed = gzip.compress(body)
    chunked = head + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (packed[:9], packed[9:])) + b"0\r\n\r\n"
    assert (await raw(served.url, chunked + pieces)).startswith(b"HTTP/1.1 200")

    two = b"GET /health" + named + b"\r\nGET /version" + last
    answers = await raw(served.url, two)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert answers.index(b'"status"') < answers.index(b'"version"')

    old = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    streamed = json.dumps({**BODY, "stream": True}).encode()
    answer = await raw(served.url, old % len(streamed) + streamed)
    assert b"transfer-encoding" not in answer.lower()
    assert answer.endswith(b"data: [DONE]\n\n")

    only_head = await raw(served.url, b"HEAD /health" + last)
    assert only_head.startswith(b"HTTP/1.1 200")
    assert only_head.endswith(b"\r\n\r\n")


@in_module_loop
async def test_half_of_a_surrogate_pair(shared: Served):
    """r2-44: a 400 in a message; in a call's arguments, which are a text of their own, it does no harm."""
    headers = {"Content-Type": "application/json"}
    cut = b'{"messages": [{"role": "user", "content": "ab \\ud83d"}], "max_tokens": 1}'
    response = await shared.http.post(CHAT, content=cut, headers=headers)
    assert response.status_code == 400
    assert "column" in response.json()["error"]["message"]
