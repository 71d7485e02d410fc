"""/v1/models, /health, /version, /reset_prefix_cache and the OpenAPI page."""

import tokenline
from tests.server.conftest import CHAT, Serve, Served
from tests.server.helpers import user


async def test_the_models_are_the_names_that_are_served(serve: Serve):
    served = await serve(model_names=("org/model-1B", "short"), created=1_700_000_000)
    models = (await served.http.get("/v1/models")).json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["org/model-1B", "short"]
    for model in models["data"]:
        assert model == (await served.http.get(f"/v1/models/{model['id']}")).json()
        assert (model["object"], model["created"], model["max_model_len"]) == ("model", 1_700_000_000, 4096)
    missing = await served.http.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_health_and_version(served: Served):
    assert (await served.http.get("/health")).json() == {"status": "ok"}
    assert (await served.http.get("/version")).json() == {"version": tokenline.__version__}


async def test_the_cache_can_be_forgotten(served: Served):
    body = {"messages": user("remember me"), "max_tokens": 1}

    async def cached() -> int:
        answer = (await served.http.post(CHAT, json=body)).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert await cached() == 0
    assert await cached() > 0
    assert (await served.http.post("/reset_prefix_cache", json={})).status_code == 200
    assert await cached() == 0


async def test_the_openapi_page_describes_bodies_and_answers(served: Served):
    document = (await served.http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatBody"}
    assert {"messages", "top_k", "cache_salt"} <= set(schemas["ChatBody"]["properties"])
    assert "usage" in schemas["ChatCompletion"]["properties"]
    assert "StreamOptions" in schemas
