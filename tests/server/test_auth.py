"""API keys open the API, and divide the cache: callers never share, and a salt only divides a caller's own part."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.server.conftest import CHAT, TEXT, Serve, Served, Tiny, in_module_loop, serving
from tests.server.helpers import user
from tokenline.server.settings import ServerSettings

PROMPT = user("The same two hundred tokens, word for word. " * 12)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tiny: Tiny) -> AsyncIterator[Served]:
    async with serving(tiny, live=False, api_keys=("key-a", "key-b")) as one:
        yield one


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


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


async def test_health_and_version_need_no_key(serve: Serve):
    served = await serve(api_keys=("key-a",))
    assert (await served.http.get("/health")).status_code == 200
    assert (await served.http.get("/version")).status_code == 200


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


def test_an_empty_key_would_let_everybody_in():
    with pytest.raises(ValueError, match="api_keys"):
        ServerSettings(("m",), api_keys=("",))


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
