"""`tokenline chat`: against the real server, against servers that misbehave, and with one of its own."""

import contextlib
import http.server
import itertools
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.command import OnTerminal, assert_one_line, run
from tests.cli.conftest import RunningServer
from tests.limits import HANG_S
from tokenline.cli.client import AnswerPiece, ChatClient, ChatError, Ending, PromptRead
from tokenline.cli.terminal import Conversation, Terminal, command_in, ending_line

CACHE_LINE = re.compile(r"^cached (\d+) of (\d+) prompt tokens \((\d+\.\d) %\), first token after \d+ ms", re.M)


def chat_with(server: RunningServer, *args: object, stdin: str):
    return run("chat", "--url", server.url, *args, stdin=stdin, env={"TOKENLINE_API_KEY": server.api_key})


def test_a_conversation_hits_the_cache_turn_by_turn(server: RunningServer) -> None:
    questions = "What is the capital of France?\n\nAnd of Italy?\nAnd of Spain?\n/exit\nnever asked\n"
    done = chat_with(server, "--temperature", "0", "--max-tokens", "24", "--system", "Be brief.", stdin=questions)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout
    turns = [(int(cached), int(prompt)) for cached, prompt, _ in CACHE_LINE.findall(done.stdout)]
    assert len(turns) == 3
    for (_, before), (cached, prompt) in itertools.pairwise(turns):
        assert before <= cached < prompt, "a turn finds at least the whole prompt of the one before"


def test_a_new_conversation_begins_without_the_old_turns(server: RunningServer) -> None:
    done = chat_with(server, "--max-tokens", "4", stdin="Say yes.\n/new\nSay yes.\n")
    first, second = CACHE_LINE.findall(done.stdout)
    assert first[1] == second[1]
    assert int(second[0]) == int(second[1]) - 1, "the same prompt again: all but its last token is held"


def test_an_error_of_the_server_is_one_line_and_the_conversation_goes_on(server: RunningServer) -> None:
    too_long = "word " * 2000
    done = chat_with(server, "--max-tokens", "4", stdin=f"Say yes.\n{too_long}\nSay yes.\n")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.match(r"tokenline: .*1024 tokens.* \(HTTP 400\)", done.stderr)
    assert len(CACHE_LINE.findall(done.stdout)) == 2
    prompts = [int(prompt) for _, prompt, _ in CACHE_LINE.findall(done.stdout)]
    assert prompts[1] < 200, "the turn that failed is not part of the conversation"


@pytest.mark.parametrize("key", ["wrong", "schlüssel"])
def test_a_wrong_key_is_one_line(server: RunningServer, key: str) -> None:
    done = run("chat", "--url", server.url, "--api-key", key, stdin="Hello\n")
    assert_one_line(done, "key")


def test_a_model_that_is_not_served_is_one_line(server: RunningServer) -> None:
    done = chat_with(server, "no-such-model", stdin="Hello\n")
    assert done.returncode == 2
    assert "no-such-model" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "127.0.0.1:9/v1", "http://", "http://[", "ftp://x", "no such host"]
)
def test_no_server_is_one_line(url: str) -> None:
    assert_one_line(run("chat", "--url", url, stdin="Hello\n"))


def test_a_person_can_stop_an_answer_and_go_on(server: RunningServer) -> None:
    args = ["chat", "--url", server.url, "--temperature", "0", "--max-tokens", "900"]
    with OnTerminal(args, {"TOKENLINE_API_KEY": server.api_key}) as terminal:
        terminal.read_until("> ")
        terminal.type("Write a long story about a lighthouse, in many words.\n")
        terminal.read_until("many words.\n")
        terminal.read_until(" ")  # the first word of the answer
        terminal.type("\x03")
        terminal.read_until("stopped; the partial answer stays in the conversation")
        terminal.read_until("> ")
        terminal.press_until("\x03", "(Ctrl-D or /exit leaves)")  # at the prompt it leads nowhere
        terminal.read_until("> ")
        terminal.type("/new\n")
        terminal.read_until("> ")
        terminal.type("Say yes.\n")
        terminal.read_until("first token after")
        terminal.read_until("> ")  # before it, the terminal would take Ctrl-D for itself
        terminal.type("\x04")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.seen


def test_ctrl_c_while_ctrl_c_is_answered_leads_nowhere_either(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ChatClient("127.0.0.1:9", None)
    terminal = Terminal(client, Conversation({}, None))
    pressed, said = iter([True, False]), []

    def read(prompt: str) -> str:
        if next(pressed):
            raise KeyboardInterrupt
        return "Hello"

    def say(text: str, **style: object) -> None:
        said.append(text)
        if len(said) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(terminal._reader, "_interactive", True)
    monkeypatch.setattr(terminal._out, "print", say)
    assert terminal._reader.read() == "Hello"
    assert said == ["\n(Ctrl-D or /exit leaves)"] * 2
    client.close()


def test_with_a_server_of_its_own_which_ends_with_it() -> None:
    mark = uuid.uuid4().hex
    question = "What is the capital of France?\n"
    done = run("chat", "--temperature", "0", "--max-tokens", "8", stdin=question, env={"TOKENLINE_TEST": mark})
    assert done.returncode == 0, done.stderr
    assert len(CACHE_LINE.findall(done.stdout)) == 1
    assert marked(mark) == []


def test_a_server_of_its_own_ends_even_if_the_chat_is_killed() -> None:
    mark = uuid.uuid4().hex
    with OnTerminal(["chat"], {"TOKENLINE_TEST": mark}) as terminal:
        terminal.read_until("> ")
        assert len(marked(mark)) == 2, "the chat and its server"
    # leaving the block kills the chat with SIGKILL
    deadline = time.monotonic() + HANG_S
    while marked(mark):
        assert time.monotonic() < deadline, "the server outlived its chat"
        time.sleep(0.1)


def marked(mark: str) -> list[psutil.Process]:
    """Running processes that have `mark` in their environment."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TOKENLINE_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


# --- servers that misbehave ------------------------------------------------------------------------------------------

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def odd_server(answer: Answer, models: object = None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(200, json.dumps({"data": [{"id": "m"}]} if models is None else models))

        def do_POST(self) -> None:
            self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer(self)

        def send(self, status: int, body: str, kind: str = "application/json") -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stream_of(*events: object, end: bool = True) -> Answer:
    lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n" for event in events]
    text = "".join(lines) + ("data: [DONE]\n\n" if end else "")
    return lambda handler: handler.send(200, text, "text/event-stream")  # type: ignore[attr-defined]


def error_of(status: int, body: object) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    return lambda handler: handler.send(status, text)  # type: ignore[attr-defined]


def delta(content: str | None = None, finish: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": content, **more}, "finish_reason": finish}]}


def answers(url: str) -> list[AnswerPiece | PromptRead | Ending]:
    client = ChatClient(url, None)
    try:
        return list(client.stream({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}))
    finally:
        client.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (stream_of(delta("a"), {"error": {"message": "it broke"}}), "it broke"),
        (stream_of(delta("a"), end=False), "the connection ended before the answer did"),
        (stream_of(delta("a"), "data: {half\n\n"), "the server's stream is not JSON"),
        (error_of(400, {"error": {"message": "no\nthis way"}}), "no\nthis way (HTTP 400)"),
        (error_of(422, {"detail": "bad"}), "bad (HTTP 422)"),
        (error_of(500, "<html>oh no</html>"), "the server answered with HTTP 500"),
        (error_of(502, "[]"), "the server answered with HTTP 502"),
        (error_of(429, {"error": "slow down"}), "slow down (HTTP 429)"),
    ],
)
def test_a_failed_answer_is_an_error_with_the_servers_words(answer: Answer, message: str) -> None:
    with odd_server(answer) as url, pytest.raises(ChatError) as caught:
        answers(url)
    assert str(caught.value) == message


def test_streams_are_read_as_the_standard_says() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}}
    comments = ": ping\n\n", "event: message\nid: 7\n"
    pieces = stream_of(*comments, delta("", role="assistant"), delta("on"), "\n", delta("e", "stop"), usage)
    with odd_server(pieces) as url:
        *parts, ending = answers(url)
    assert parts == [AnswerPiece("on"), AnswerPiece("e")]
    assert isinstance(ending, Ending)
    assert (ending.finish_reason, ending.prompt_tokens, ending.cached_tokens) == ("stop", 9, 0)


def test_a_broken_stream_leaves_the_conversation_as_it_was() -> None:
    requests: list[list[object]] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        requests.append([])
        ending = {} if len(requests) == 2 else {"finish": "stop"}
        stream_of(delta(f"answer {len(requests)}", **ending), end=len(requests) != 2)(handler)

    with odd_server(answer) as url:
        done = run("chat", "--url", url, stdin="one\ntwo\nthree\n")
    assert done.returncode == 2
    assert done.stderr == "tokenline: the connection ended before the answer did\n"
    assert "answer 3" in done.stdout


def test_what_a_model_writes_cannot_steer_the_terminal() -> None:
    with odd_server(stream_of(delta("\x1b[2Jgone\x07 [bold]x[/bold] :smile:", "stop"))) as url:
        done = run("chat", "--url", url, stdin="Hello\n")
    assert done.stdout.startswith("\ufffd[2Jgone\ufffd [bold]x[/bold] :smile:\n")


def test_reasoning_is_shown_but_not_sent_back() -> None:
    with odd_server(stream_of(delta(reasoning_content="hm"), delta("yes", "stop"))) as url:
        assert answers(url)[:2] == [AnswerPiece(reasoning="hm"), AnswerPiece("yes")]
        assert run("chat", "--url", url, stdin="Hello\n").stdout.startswith("hm\nyes\n")


@pytest.mark.parametrize("models", [{"data": []}, {"models": []}, [], {"data": [{"name": "m"}]}])
def test_a_server_without_models_is_one_line(models: object) -> None:
    with odd_server(stream_of(), models) as url:
        assert_one_line(run("chat", "--url", url, stdin="Hello\n"))


def test_input_that_is_not_utf8_is_not_fatal() -> None:
    with odd_server(stream_of(delta("yes", "stop"))) as url:
        assert run("chat", "--url", url, stdin="caf\udce9\n").stdout.startswith("yes\n")


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        (Ending("stop", 861, 812, 0.0612), "cached 812 of 861 prompt tokens (94.3 %), first token after 61 ms"),
        (
            Ending("length", 9, 0, 1),
            "cached 0 of 9 prompt tokens (0.0 %), first token after 1000 ms, stopped at the token limit",
        ),
        (Ending("stop", 10, None, None), "10 prompt tokens, the server does not say how many were cached"),
        (Ending("stop", None, None, None), "the server does not say how many tokens the prompt had"),
        (Ending("stop", 0, 0, None), "cached 0 of 0 prompt tokens (0.0 %)"),
    ],
)
def test_what_is_said_after_a_turn(ending: Ending, line: str) -> None:
    assert ending_line(ending) == line


# --- commands and long messages ---------------------------------------------------------------------------------------


@contextmanager
def echo_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers with the number of the request, and what it was asked."""
    asked: list[dict[str, Any]] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(handler.body)  # type: ignore[attr-defined]
        stream_of(delta(f"answer {len(asked)}", "stop"))(handler)

    with odd_server(answer) as url:
        yield url, asked


def said(request: dict[str, Any]) -> list[str]:
    return [message["content"] for message in request["messages"]]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", ("new", "")),
        ("/read a b.txt", ("read", "a b.txt")),
        ("/save", ("save", "")),
        ("/etc/hosts is a file", None),
        ("/new is what I type", None),
        ("/read\nme", None),
        ("read me", None),
    ],
)
def test_what_is_a_command(text: str, command: tuple[str, str] | None) -> None:
    assert command_in(text) == command


def test_an_answer_again(tmp_path: Path) -> None:
    with echo_server() as (url, asked):
        done = run("chat", "--url", url, stdin="/regen\none\n/regen\ntwo\n")
    assert done.stderr == "tokenline: there is no message to answer again\n"
    assert [said(request) for request in asked] == [["one"], ["one"], ["one", "answer 2", "two"]]


def test_an_answer_again_that_fails_leaves_the_old_one() -> None:
    requests: list[dict[str, Any]] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        requests.append(handler.body)  # type: ignore[attr-defined]
        stream_of(delta(f"answer {len(requests)}", "stop"), end=True)(handler) if len(requests) != 2 else error_of(
            500, {"error": "no"}
        )(handler)

    with odd_server(answer) as url:
        run("chat", "--url", url, stdin="one\n/regen\ntwo\n")
    assert said(requests[2]) == ["one", "answer 1", "two"]


def test_files_are_read_and_the_conversation_is_saved(tmp_path: Path) -> None:
    (tmp_path / "notes 中.txt").write_text("一\n二", "utf-8")
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    saved = tmp_path / "saved.json"
    lines = [f"/read {tmp_path / 'notes 中.txt'}", "What is it?", f"/save {saved}", "/read nowhere.txt"]
    lines += [f"/read {tmp_path / 'raw'}", "/save /proc/no/such", "/reed", "/save"]
    with echo_server() as (url, asked):
        done = run("chat", "--url", url, "--system", "Be brief.", stdin="\n".join(lines))
    assert said(asked[0]) == ["Be brief.", "一\n二\nWhat is it?"]
    assert said(json.loads(saved.read_text("utf-8"))) == ["Be brief.", "一\n二\nWhat is it?", "answer 1"]
    assert done.stderr.splitlines() == [
        "tokenline: cannot read nowhere.txt: No such file or directory",
        f"tokenline: cannot read {tmp_path / 'raw'}: it is not UTF-8 text",
        "tokenline: cannot write /proc/no/such: No such file or directory",
        "tokenline: there is no command /reed; /help lists them",
        "tokenline: /save needs the name of a file",
    ]


def test_what_stands_between_quotes_is_one_message() -> None:
    with echo_server() as (url, asked):
        run("chat", "--url", url, stdin='"""\na\n\n /new\n"""\n"""one line"""\n"""open\nto the end')
    assert [said(request)[-1] for request in asked] == ["a\n\n /new", "one line", "open\nto the end"]


def test_a_pasted_text_is_one_message() -> None:
    with echo_server() as (url, asked), OnTerminal(["chat", "--url", url]) as terminal:
        terminal.read_until("> ")
        terminal.type("\x1b[200~one\ntwo 中 😀\nthree\x1b[201~")
        terminal.read_until("three")
        terminal.type("\r")
        terminal.read_until("answer 1")
        terminal.read_until("> ")
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert said(asked[0]) == ["one\ntwo 中 😀\nthree"]


def test_no_colours_where_none_are_wanted() -> None:
    with echo_server() as (url, _), OnTerminal(["chat", "--url", url], {"NO_COLOR": "1"}) as terminal:
        terminal.read_until("> ")
        assert b"\x1b[1;36m" not in terminal.received
        terminal.type("\x04")


def test_a_long_prompt_shows_how_far_it_is() -> None:
    read = [{"choices": [], "prompt_progress": {"total": 8000, "cache": 0, "processed": done, "time_ms": done}}
            for done in (0, 900, 4000)]  # fmt: skip
    with (
        odd_server(stream_of(*read, delta("yes", "stop"))) as url,
        OnTerminal(["chat", "--url", url]) as terminal,
    ):
        terminal.read_until("> ")
        terminal.type("Hello\n")
        shown = terminal.read_until("yes")
        assert "reading the prompt: 4,000 of 8,000 tokens (50 %)" in shown
        assert "900 of" not in shown, "what is done at once needs no progress"
        terminal.read_until("> ")
        terminal.type("\x04")


def test_a_server_that_refuses_the_field_is_asked_without_it() -> None:
    asked: list[dict[str, Any]] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(handler.body)  # type: ignore[attr-defined]
        refused = "return_progress" in asked[-1]
        (error_of(400, {"error": "return_progress?"}) if refused else stream_of(delta("yes", "stop")))(handler)

    with odd_server(answer) as url:
        assert run("chat", "--url", url, stdin="Hello\nAgain\n").returncode == 0
    assert ["return_progress" in request for request in asked] == [True, False, False]


def test_options_of_a_server_of_its_own_need_one() -> None:
    assert_one_line(run("chat", "--url", "http://127.0.0.1:9", "--dtype", "int8", stdin=""), "--dtype")
    assert_one_line(run("chat", "--max-model-len", "1", stdin="Hello\n"), "--max-model-len")
