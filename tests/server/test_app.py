"""What the application says of itself when it starts."""

import dataclasses

from tests.server.conftest import Tiny, serving
from tests.sources import llama_cpp_source
from tokenline.render.renderer import Renderer


async def test_a_template_that_breaks_lines_is_named_once_at_the_start(tiny: Tiny, caplog):
    source = (llama_cpp_source() / "templates" / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    qwen3 = dataclasses.replace(tiny, renderer=Renderer.from_model(tiny.path, chat_template=source))
    async with serving(qwen3, live=False):
        pass
    (said,) = [record.getMessage() for record in caplog.records if "template" in record.getMessage()]
    assert said.startswith("This template ")
    assert "drops the reasoning of earlier turns" in said
    assert "tokenline template check" in said


async def test_a_template_that_keeps_lines_whole_is_no_news(tiny: Tiny, caplog):
    async with serving(tiny, live=False):
        pass
    assert not [record for record in caplog.records if "template" in record.getMessage()]
