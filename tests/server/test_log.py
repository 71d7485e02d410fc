"""One line a request, with the facts; quiet by default."""

import io
import json
import logging

import pytest

from tests.server.conftest import CHAT, TEXT, Serve, Served, Tiny
from tests.server.helpers import Slow, eventually, stream, user
from tokenline.server.log import JSONFormatter, TextFormatter


def lines(caplog: pytest.LogCaptureFixture) -> list[dict]:
    return [record.__dict__["fields"] for record in caplog.records if record.name == "tokenline.request"]


async def test_a_finished_request(served: Served, caplog):
    caplog.set_level("INFO", logger="tokenline")
    body = {"messages": user("hello there"), "max_tokens": 3, "ignore_eos": True}
    answer = (await served.http.post(CHAT, json=body)).json()
    await stream(served.http, CHAT, body)
    first, second = lines(caplog)
    assert first["id"] == answer["id"]
    assert (first["method"], first["route"], first["status"]) == ("POST", CHAT, 200)
    assert first["finish"] == second["finish"] == "length"
    assert first["prompt"] == first["cached"] + first["computed"] == answer["usage"]["prompt_tokens"]
    assert (first["cached"], second["cached"], second["computed"]) == (0, first["prompt"] - 1, 1)
    assert (first["output"], second["output"]) == (3, 3)
    assert second["stream"] is True
    assert "stream" not in first
    for line in (first, second):
        assert 0 <= line["queue_ms"] <= line["total_ms"]
        assert 0 <= line["prefill_ms"] <= line["total_ms"]


async def test_a_refused_request(served: Served, caplog):
    caplog.set_level("INFO", logger="tokenline")
    await served.http.post(TEXT, json={"prompt": "a", "n": 0})
    (line,) = lines(caplog)
    assert (line["status"], line["error"]) == (400, "invalid_value")
    assert line["id"].startswith("cmpl-")
    assert "prompt" not in line


async def test_health_is_not_worth_a_line(served: Served, caplog):
    caplog.set_level("INFO", logger="tokenline")
    await served.http.get("/health")
    assert lines(caplog) == []


async def test_a_client_that_left_is_logged_as_aborted_and_not_as_an_error(serve: Serve, tiny: Tiny, caplog):
    caplog.set_level("INFO")
    served = await serve(live=True, model=Slow(tiny.model))
    body = {"messages": user("hi"), "stream": True, "max_tokens": 3000, "ignore_eos": True}
    async with served.http.stream("POST", CHAT, json=body) as response:
        async for _ in response.aiter_lines():
            break
    await eventually(lambda: lines(caplog) != [])
    (line,) = lines(caplog)
    assert line["finish"] == "abort"
    assert "error" not in line
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def written(formatter: logging.Formatter, fields: dict) -> str:
    record = logging.LogRecord("tokenline.request", logging.INFO, "", 0, "request", None, None)
    record.fields = fields
    return formatter.format(record)


def test_the_text_form_cannot_be_forged_by_a_path():
    line = written(TextFormatter(), {"route": "/x\nINFO request status=200", "prompt": 5, "id": "a=b"})
    assert "\n" not in line
    assert line.endswith('request route="/x\\nINFO request status=200" prompt=5 id="a=b"')


def test_the_json_form_is_one_object():
    line = written(JSONFormatter(), {"route": "/x\n", "prompt": 5})
    assert "\n" not in line
    assert json.loads(line)["prompt"] == 5
    assert json.loads(line)["level"] == "info"


def test_quiet_by_default():
    from tokenline.server.log import configure_logging
    from tokenline.server.settings import ServerSettings

    kept = {name: (logging.getLogger(name).handlers, logging.getLogger(name).level, logging.getLogger(name).propagate)
            for name in ("tokenline", "uvicorn")}  # fmt: skip
    try:
        settings = ServerSettings(("m",))
        configure_logging(settings.log_level, settings.log_json)
        out = io.StringIO()
        (handler,) = logging.getLogger("tokenline").handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(out)
        logging.getLogger("tokenline.request").info("request")
        assert out.getvalue() == ""
        logging.getLogger("tokenline.request").warning("look")
        assert "look" in out.getvalue()
    finally:
        for name, (handlers, level, propagate) in kept.items():
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
