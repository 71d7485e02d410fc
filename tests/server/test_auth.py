"""API keys open the API, and divide the cache: callers never share, and a salt only divides a caller's own part."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

import tokenline
from tests.server.conftest import CHAT, TEXT, Serve, Served, Tiny, in_module_loop, serving
from tests.server.helpers import user
from tokenline.server.document import OPEN
from tokenline.server.keys import ApiKey
from tokenline.server.settings import ServerSettings

PROMPT = user("The same two hundred tokens, word for word. " * 12)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tiny: Tiny) -> AsyncIterator[Served]:
    async with serving(tiny, live=False, api_keys=("key-a", "key-b")) as one:
        yield one


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


ROWS: list[tuple[str, dict[str, str]]] = [("key-a", {}), ("key-a", {"cache_salt": "team"}), ("key-b", {})]


async def cached(served, key: str | None, **more) -> int:
    headers = {} if key is None else bearer(key)
    response = await served.http.post(CHAT, json={"messages": PROMPT, "max_tokens": 1, **more}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    "headers",
    [
        {}, bearer("wrong"), bearer(""), bearer("key-"), {"authorization": "key-a"}, {"authorization": "Basic key-a"},
        {"authorization": "Bearer"}, {"authorization": "bearer key-A"}, {"api-key": "key-a"}, bearer("key-a,key-b"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("POST", CHAT), ("POST", TEXT), ("GET", "/v1/models"), ("GET", "/v1/models/tiny"), ("POST", "/tokenize"),
        ("POST", "/detokenize"), ("POST", "/apply-template"), ("POST", "/reset_prefix_cache"),
    ],
)  # fmt: skip
@in_module_loop
async def test_without_a_right_key_nothing_opens(locked: Served, method: str, url: str, headers: dict):
    response = await locked.http.request(method, url, headers=headers, content=b"not even JSON")
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_any_of_several_keys_opens(serve: Serve):
    served = await serve(api_keys=("key-a", "schlüssel-b"))
    for key in (b"key-a", "schlüssel-b".encode()):
        headers = [(b"authorization", b"Bearer " + key)]
        assert (await served.http.get("/v1/models", headers=headers)).status_code == 200
    assert (await served.http.get("/v1/models", headers={"authorization": "bearer  key-a "})).status_code == 200


async def test_health_alone_needs_no_key(serve: Serve):
    served = await serve(api_keys=("key-a",))
    assert (await served.http.get("/health")).json() == {"status": "ok"}
    assert "tiny" not in (await served.http.get("/")).text
    assert tokenline.__version__ not in (await served.http.get("/")).text


async def test_every_route_of_the_document_asks_for_the_key_that_it_declares(locked: Served):
    document = (await locked.http.get("/openapi.json", headers=bearer("key-a"))).json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["security"] == [{"key": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            is_open = operation.get("security") == []
            response = await locked.http.request(method, path.replace("{name}", "tiny"), json={})
            assert response.status_code == (200 if is_open else 401), path
            assert is_open == (path in OPEN)


async def test_without_keys_the_document_declares_none(serve: Serve):
    document = (await (await serve()).http.get("/openapi.json")).json()
    assert "security" not in document
    assert "securitySchemes" not in document["components"]


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc"])
@in_module_loop
async def test_a_person_in_a_browser_reads_the_document_with_a_key_as_password(locked: Served, path: str):
    refused = await locked.http.get(path)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    for credentials in (("", "wrong"), ("key-a", ""), ("", "")):
        assert (await locked.http.get(path, auth=credentials)).status_code == 401
    for wrong in ("Basic", "Basic !", "Basic a2V5LWE="):
        assert (await locked.http.get(path, headers={"authorization": wrong})).status_code == 401
    assert (await locked.http.get(path, auth=("anybody", "key-b"))).status_code == 200
    assert (await locked.http.get(path, headers=bearer("key-a"))).status_code == 200


@in_module_loop
async def test_a_password_opens_nothing_else(locked: Served):
    """A browser adds it to whatever a page sends here."""
    for method, path in (("POST", "/reset_prefix_cache"), ("GET", "/stats"), ("POST", CHAT)):
        assert (await locked.http.request(method, path, auth=("", "key-a"), json={})).status_code == 401


async def test_a_key_clears_its_own_prefixes_only(serve: Serve):
    served = await serve(api_keys=(ApiKey.of("key-a"), ApiKey.of("key-b"), replace(ApiKey.of("root"), is_admin=True)))

    async def held() -> list[bool]:
        return [await cached(served, key, **more) > 0 for key, more in ROWS]

    assert await held() == [False, False, False]
    assert await held() == [True, True, True]
    assert (await served.http.post("/reset_prefix_cache", headers=bearer("key-a"))).status_code == 200
    assert await held() == [False, False, True]
    assert (await served.http.post("/reset_prefix_cache", headers=bearer("root"))).status_code == 200
    assert await held() == [False, False, False]


async def test_callers_never_share_whatever_salt_they_send(serve: Serve):
    """is-02"""
    served = await serve(api_keys=("key-a", "key-b"))
    assert await cached(served, "key-a", cache_salt="team-1") == 0
    assert await cached(served, "key-b", cache_salt="team-1") == 0
    assert await cached(served, "key-b") == 0
    assert await cached(served, "key-a") == 0
    assert await cached(served, "key-a", cache_salt="team-1") > 0
    assert await cached(served, "key-b", cache_salt="team-2") == 0
    assert await cached(served, "key-b", cache_salt="team-1") > 0


async def test_without_keys_the_salt_divides(serve: Serve):
    served = await serve()
    assert await cached(served, None) == 0
    assert await cached(served, None, cache_salt="a") == 0
    assert await cached(served, None, cache_salt="b") == 0
    assert await cached(served, None, cache_salt="a") > 0
    assert await cached(served, None) > 0


async def test_a_key_is_no_salt_and_a_salt_no_key(serve: Serve):
    """is-03: the parts of a namespace are never joined."""
    open_, closed = await serve(), await serve(api_keys=("ab", "a"))
    assert await cached(open_, None, cache_salt="ab") == 0
    assert await cached(closed, "ab", cache_salt="c") == 0
    assert await cached(closed, "a", cache_salt="bc") == 0
    assert await cached(closed, "ab", cache_salt="bc") == 0


async def test_an_empty_salt_is_refused(serve: Serve):
    """is-03, the rule for an empty salt; the longest that is allowed works."""
    served = await serve()
    response = await served.http.post(CHAT, json={"messages": PROMPT, "max_tokens": 1, "cache_salt": ""})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_salt"
    assert await cached(served, None, cache_salt="x" * 1024) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"model_names": ()},
        {"model_names": ("",)},
        {"max_body_bytes": 0},
        {"shutdown_grace_s": -1},
        {"log_level": "loud"},
    ],
)
def test_settings_that_make_no_sense(options: dict):
    with pytest.raises(ValueError, match=next(iter(options)) if "grace" not in str(options) else "times"):
        ServerSettings(**{"model_names": ("m",), **options})
