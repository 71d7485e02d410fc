"""`tokenline render`: the line of a request, token by token, with the real default model and its template."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.command import assert_one_line, run
from tokenline.cli.main import USER_ERRORS, app
from tokenline.cli.render import line_of_request
from tokenline.render.chat_input import ChatInput
from tokenline.render.origins import LineToken, token_origins
from tokenline.render.renderer import Renderer

REQUEST = {
    "messages": [
        {"role": "system", "content": "你是助手"},
        {"role": "user", "content": 'naïve  "text"\n😀 <|im_end|>'},
    ]
}


def tokens_of(request: Any, renderer: Renderer) -> list[LineToken]:
    return list(token_origins(line_of_request(json.dumps(request).encode(), renderer), renderer.tokenizer))


def test_the_ids_are_those_of_the_server(smollm2_renderer: Renderer) -> None:
    line = smollm2_renderer.chat(ChatInput(messages=REQUEST["messages"]))
    tokens = tokens_of(REQUEST, smollm2_renderer)
    assert [token.id for token in tokens] == line.ids.tolist()
    data = b"".join(token.broken if token.broken is not None else token.text.encode() for token in tokens)
    assert data.decode() == line.text


def test_a_raw_prompt_comes_from_the_prompt(smollm2_renderer: Renderer) -> None:
    for request, pointer in [({"prompt": "Hello,  wörld"}, "/prompt"), ({"prompt": ["Hello,  wörld"]}, "/prompt/0")]:
        tokens = tokens_of(request, smollm2_renderer)
        assert {part.pointer for token in tokens for part in token.parts} == {pointer}


def test_a_prompt_of_ids_is_shown_id_by_id(smollm2_renderer: Renderer) -> None:
    for request, pointer in [({"prompt": [1, 28120, 2]}, "/prompt"), ({"prompt": [[1, 28120, 2]]}, "/prompt/0")]:
        tokens = tokens_of(request, smollm2_renderer)
        assert [(token.id, token.text, token.parts[0].pointer) for token in tokens] == [
            (1, "<|im_start|>", f"{pointer}/0"),
            (28120, "hello", f"{pointer}/1"),
            (2, "<|im_end|>", f"{pointer}/2"),
        ]


def test_names_values_and_escapes_are_shown_as_such(smollm2: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages | tojson }}")
    request = json.dumps({"messages": [{"role": "user", "content": 'a\n"b'}]})
    done = CliRunner().invoke(app, ["render", "-", "--chat-template", str(template)], input=request)
    shown = [tuple(line.split(maxsplit=2)[2].rsplit("  ", 1)) for line in done.stdout.splitlines()[:-1]]
    places = [(text.strip(), place.strip()) for text, place in shown if "/" in place]
    assert places == [
        ('"role"', "/messages/0/role (name)"),
        ('"user"', "/messages/0/role [0:4]"),
        ('"content"', "/messages/0/content (name)"),
        ('"a"', "/messages/0/content [0:1]"),
        ('"\\\\"', "/messages/0/content [1:2]"),
        ('"n"', "/messages/0/content [1:2]"),
        ('"\\\\""', "/messages/0/content [2:3]"),
        ('"b"', "/messages/0/content [3:4]"),
    ]


def test_json_from_a_file_and_from_stdin_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(REQUEST))
    done = run("render", file, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    tokens = json.loads(done.stdout)
    assert {"id", "text", "start", "end", "origin", "pointer", "key", "offset", "length", "escape"} <= tokens[0].keys()
    assert tokens[0]["text"] == "<|im_start|>"
    assert run("render", "-", "--json", stdin=json.dumps(REQUEST)).stdout == done.stdout


def test_for_a_person_there_is_a_line_for_each_token(smollm2: Path) -> None:
    done = CliRunner().invoke(app, ["render", "-"], input='{"prompt": "tab\\tand\\nnewline \\u001b[31m 你"}')
    assert done.exit_code == 0
    *lines, summary = done.stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert summary == f"{len(lines)} tokens, {len(lines)} request"
    assert "\x1b" not in done.stdout
    assert '"\\n"' in done.stdout
    assert '"\\xe4\\xbd" of 你' in done.stdout, "half a character is shown as its bytes"


def test_another_template(smollm2: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    request = '{"messages": [{"role": "user", "content": "hi"}]}'
    arguments = ["render", "-", "--json", "--chat-template", str(template)]
    done = CliRunner().invoke(app, arguments, input=request)
    assert "".join(token["text"] for token in json.loads(done.stdout)) == "<user>hi"
    template.write_text("{{ raise_exception('not today') }}")
    done = CliRunner().invoke(app, arguments, input=request)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "not today" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("request_text", "part"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"messages": NaN}', "not valid JSON"),
        ("[" * 100000, "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", 'either "messages" or "prompt"'),
        ('{"messages": [], "prompt": ""}', 'either "messages" or "prompt"'),
        ('{"messages": []}', "messages"),
        ('{"messages": "hi"}', "messages"),
        ('{"messages": [{"role": "nobody", "content": ""}]}', "messages[0].role"),
        ('{"messages": [{"role": "user", "content": 5}]}', "messages[0].content"),
        ('{"messages": [{"role": "user", "content": "hi"}], "tools": 3}', "tools"),
        ('{"prompt": null}', "prompt"),
        ('{"prompt": [1, -1]}', "prompt[1]"),
        ('{"prompt": [1, true]}', "prompt[1]"),
        ('{"prompt": ["a", "b"]}', "several prompts"),
    ],
)
def test_a_request_that_cannot_be_rendered_names_its_fault(
    smollm2_renderer: Renderer, request_text: str, part: str
) -> None:
    with pytest.raises(USER_ERRORS, match=re.escape(part)):
        line_of_request(request_text.encode(), smollm2_renderer)


def test_a_request_that_cannot_be_rendered_is_one_line(smollm2: Path) -> None:
    assert_one_line(run("render", "-", stdin='{"messages": [{"role": "user", "content": 5}]}'), "messages[0].content")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert_one_line(run("render", tmp_path / "absent.json"), "absent.json: No such file or directory")
    assert_one_line(run("render", tmp_path), "Is a directory")
