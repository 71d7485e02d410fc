"""Web pages: CORS for those that are allowed (r2-34), and a server that foreign ones cannot use."""

from typing import Any

import pytest

from tests.server.conftest import CHAT, Serve, Served, in_module_loop
from tests.server.helpers import events, user
from tokenline.server.origins import allows, check_origin, is_local_name

BODY = {"messages": user("hi"), "max_tokens": 2}
OBSIDIAN = "app://obsidian.md"


def preflight(origin: str, **more: str) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        **more,
    }


async def test_an_allowed_page(serve: Serve):
    """r2-34: the preflight, answers, streams and errors."""
    served = await serve(cors_origins=("https://chat.example.com", OBSIDIAN))
    asked = await served.http.request("OPTIONS", CHAT, headers=preflight(OBSIDIAN))
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == OBSIDIAN
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert {"authorization", "content-type"} <= set(asked.headers["access-control-allow-headers"].split(","))
    assert "access-control-allow-private-network" not in asked.headers
    network = preflight(OBSIDIAN, **{"Access-Control-Request-Private-Network": "true"})
    asked = await served.http.request("OPTIONS", CHAT, headers=network)
    assert asked.headers["access-control-allow-private-network"] == "true"
    origin = {"Origin": OBSIDIAN}
    for response, status in (
        (await served.http.post(CHAT, json=BODY, headers=origin), 200),
        (await served.http.post(CHAT, json={**BODY, "stream": True}, headers=origin), 200),
        (await served.http.post(CHAT, json={**BODY, "top_p": 9}, headers=origin), 400),
        (await served.http.post("/nothing", json=BODY, headers=origin), 404),
        (await served.http.get("/v1/models", headers=origin), 200),
    ):
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == OBSIDIAN
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        assert response.headers["vary"] == "Origin"
    assert events((await served.http.post(CHAT, json={**BODY, "stream": True}, headers=origin)).text)[-1] == "[DONE]"


async def test_every_page(serve: Serve):
    served = await serve(cors_origins=("*",))
    for origin in ("https://any.example", "null", "vscode-webview://abc"):
        asked = await served.http.request("OPTIONS", "/v1/models", headers=preflight(origin))
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, origin)


@in_module_loop
@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:3000", OBSIDIAN, "null", "https://[bad"])
async def test_a_foreign_page_is_refused_without_the_option(shared: Served, origin: str):
    for response in (
        await shared.http.request("OPTIONS", CHAT, headers=preflight(origin)),
        await shared.http.post(CHAT, json=BODY, headers={"Origin": origin}),
        await shared.http.get("/v1/models", headers={"Origin": origin}),
        await shared.http.post("/reset_prefix_cache", headers={"Origin": origin}),
    ):
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control")]
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "origin_not_allowed")
        assert "--cors-origins" in error["message"]
        assert response.headers["x-request-id"]


@in_module_loop
@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
async def test_the_servers_own_pages_may(shared: Served, host: str):
    own = {"Origin": f"http://{host}", "Host": host}
    response = await shared.http.post(CHAT, json=BODY, headers=own)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


@in_module_loop
async def test_a_domain_that_points_here_is_refused(shared: Served):
    """DNS rebinding: to the browser such a page is the server's own."""
    rebound = {"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}
    for response in (
        await shared.http.post(CHAT, json=BODY, headers=rebound),
        await shared.http.get("/v1/models", headers={"Host": "evil.example"}),
        await shared.http.get("/", headers={"Host": "localhost.evil.example"}),
        await shared.http.get("/", headers={"Host": "127.0.0.1.evil.example:80"}),
    ):
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "host_not_allowed"
        assert "--allowed-hosts" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({"allowed_hosts": ("llm.example.com",)}, "LLM.example.com:8000", 200),
        ({"allowed_hosts": ("llm.example.com",)}, "evil.example", 403),
        ({"allowed_hosts": ("*",)}, "evil.example", 200),
        ({"allowed_hosts": None}, "tokenline:8000", 200),  # listens on the network
    ],
)
async def test_names_that_the_server_may_be_called_by(serve: Serve, settings: dict[str, Any], host: str, status: int):
    served = await serve(**settings)
    assert (await served.http.get("/v1/models", headers={"Host": host})).status_code == status


async def test_with_keys_the_key_decides(serve: Serve):
    served = await serve(api_keys=("secret",))
    foreign = {"Origin": "https://app.example", "Host": "llm.example.com"}
    assert (await served.http.get("/v1/models", headers=foreign)).status_code == 401
    with_key = {**foreign, "Authorization": "Bearer secret"}
    assert (await served.http.get("/v1/models", headers=with_key)).status_code == 200
    assert (await served.http.request("OPTIONS", CHAT, headers=preflight("https://app.example"))).status_code == 403


def test_patterns():
    assert allows(("http://localhost:*",), "http://localhost:3000")
    assert not allows(("http://localhost:*",), "http://localhost.evil.example")
    assert allows(("https://*.example.com",), "https://chat.example.com")
    assert not allows(("https://*.example.com",), "https://evil.example/.example.com")
    assert allows(("app://*",), OBSIDIAN)
    assert not allows(("https://a.b",), "https://aXb")
    for wrong in ("localhost:3000", "https://", "https://a.b/path", "", "a b"):
        with pytest.raises(ValueError, match="an origin is"):
            check_origin(wrong)


@pytest.mark.parametrize("name", ["localhost", "a.localhost", "box.local", "host.docker.internal", "10.0.0.7", "[::1]"])
def test_local_names(name: str):
    assert is_local_name(name)
    assert not is_local_name(name + ".evil.example")


@in_module_loop
@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/models", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),  # an image, a script
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200),  # a link
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "image"}, 403),  # another port
        ("POST", "/reset_prefix_cache", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 403),  # a form
        ("GET", "/", {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}, 200),  # typed in
        ("GET", "/v1/models", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("GET", "/v1/models", {}, 200),  # no browser
    ],
)
async def test_what_browsers_say_of_a_request(shared: Served, method: str, path: str, headers: dict, status: int):
    response = await shared.http.request(method, path, headers=headers)
    assert response.status_code == status


JSON = {"Content-Type": "application/json; charset=utf-8"}
SIMPLE = [{}, *({"Content-Type": f"{kind}"} for kind in ("text/plain", "application/x-www-form-urlencoded"))]


@in_module_loop
@pytest.mark.parametrize("headers", [*SIMPLE, {"Content-Type": "multipart/form-data; boundary=application/json"}])
@pytest.mark.parametrize("path", ["/reset_prefix_cache", CHAT, "/v1/completions", "/tokenize"])
async def test_a_request_that_a_page_can_send_unasked_changes_nothing(shared: Served, path: str, headers: dict):
    response = await shared.http.post(path, headers=headers, content=b"{}")
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


@in_module_loop
async def test_the_cache_is_cleared_with_json_or_no_body(shared: Served):
    for content in (b"", b"{}"):
        assert (await shared.http.post("/reset_prefix_cache", headers=JSON, content=content)).status_code == 200
