"""`prompt_cache_retention` reaches the disk tier: what may outlive the server does, and what may not does not."""

from pathlib import Path
from typing import Any

import pytest

from tests.limits import never_give_up_on_the_disk
from tests.server.conftest import CHAT, Served, Tiny, serving

MESSAGES = [{"role": "user", "content": "Remember the archive and its keeper. 记住档案。 " * 8}]


async def cached(served: Served, **more: Any) -> int:
    response = await served.http.post(CHAT, json={"messages": MESSAGES, "max_tokens": 2, "temperature": 0, **more})
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("retention", "survives"), [("in_memory", False), ("24h", True), (None, True)])
async def test_retention_decides_what_outlives_the_server(
    tiny: Tiny, tmp_path: Path, retention, survives, monkeypatch: pytest.MonkeyPatch
):
    never_give_up_on_the_disk(monkeypatch)
    options: dict[str, Any] = {"cache_dir": tmp_path, "model_fingerprint": "tiny"}
    async with serving(tiny, live=False, **options) as served:
        assert await cached(served, prompt_cache_retention=retention) == 0
        assert await cached(served, prompt_cache_retention=retention) > 0, "the device holds it all the same"
    async with serving(tiny, live=False, **options) as served:
        # Asked without a wish, so that only what was kept then decides.
        assert (await cached(served) > 0) == survives
