"""The hub: the hub's own client against a small server on this machine that speaks the endpoints the client calls.

The client reads its address and cache folder when it is imported, so each fetch runs in a process of its own.
"""

import hashlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.limits import HANG_S
from tokenline.models.errors import ModelError
from tokenline.models.fetch import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLIENT_CHUNK = 10 << 20  # what the client received of a broken transfer is kept in whole chunks of this size
WEIGHTS = os.urandom(CLIENT_CHUNK + 3_000_000)

SAFETENSORS_REPO = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": b"second",
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"not needed to run it",
    "pytorch_model.bin": b"the same weights, as a pickle",
    "consolidated.safetensors": b"the same weights, under other names",
    "onnx/model.safetensors": b"another format",
}
GGUF_REPO = {"small-Q4_0.gguf": b"GGUF small", "folder/big-Q8_0.gguf": b"GGUF big", "README.md": b""}
QWEN_REPO = {"Qwen3-0.6B-Q8_0.gguf": b"GGUF qwen", "README.md": b""}
SPLIT_REPO = {"m-Q8_0-00001-of-00002.gguf": b"GGUF", "m-Q8_0-00002-of-00002.gguf": b"GGUF", "m-Q2_K.gguf": b"GGUF 2"}
PICKLE_REPO = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}


class Hub:
    """What the client needs of a hub: repository info, its tree, HEAD and GET (with ranges) of its files."""

    def __init__(self) -> None:
        self.repos = {"org/model": SAFETENSORS_REPO, "org/gguf": GGUF_REPO, "org/pickle": PICKLE_REPO}
        self.repos |= {"Qwen/Qwen3-0.6B-GGUF": QWEN_REPO, "org/split": SPLIT_REPO}
        self.gated = {"org/gated"}
        self.break_at: int | None = None  # the next transfer of the big file ends after this many bytes
        self.gets: list[tuple[str, str | None]] = []  # file and Range header of each GET
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.handle_request(with_body=False)

            def do_GET(self) -> None:
                self.handle_request(with_body=True)

            def handle_request(self, with_body: bool) -> None:
                path = urlsplit(self.path).path
                if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
                    repo, kind, revision = match.groups()
                    if self.refuse(repo, revision):
                        return
                    files = hub.repos[repo]
                    if kind == "revision":
                        names = [{"rfilename": name} for name in files]
                        self.reply_json({"_id": "1", "id": repo, "sha": COMMIT, "siblings": names})
                    else:
                        self.reply_json(
                            [
                                {"type": "file", "path": name, "size": len(body), "oid": etag(body)}
                                for name, body in files.items()
                            ]
                        )
                elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                    repo, revision, name = match.groups()
                    if not self.refuse(repo, revision):
                        self.reply_file(hub.repos[repo], name, with_body)
                else:
                    self.reply(404, {}, b"")

            def refuse(self, repo: str, revision: str) -> bool:
                if repo in hub.gated:
                    self.reply(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b"")
                elif repo not in hub.repos:
                    self.reply(404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"")
                elif revision not in ("main", COMMIT):
                    self.reply(404, {"X-Error-Code": "RevisionNotFound"}, b"")
                else:
                    return False
                return True

            def reply_file(self, files: dict[str, bytes], name: str, with_body: bool) -> None:
                if name not in files:
                    self.reply(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b"")
                    return
                body = files[name]
                headers = {"ETag": f'"{etag(body)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                if not with_body:
                    self.reply(200, headers, b"", length=len(body))
                    return
                asked = self.headers.get("Range")
                hub.gets.append((name, asked))
                status, part = 200, body
                if asked:
                    start = int(asked.removeprefix("bytes=").split("-")[0])
                    status, part = 206, body[start:]
                    headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                if hub.break_at is not None and body is WEIGHTS:
                    sent, hub.break_at = part[: hub.break_at], None
                    self.reply(status, headers, sent, length=len(part))
                    self.close_connection = True
                    return
                self.reply(status, headers, part)

            def reply_json(self, value: Any) -> None:
                self.reply(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

            def reply(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


def etag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()
    thread.join()


FETCH = """
import json, sys
from tokenline.models.errors import ModelError
from tokenline.models.fetch import resolve_model
reports = []
watched = {"progress": lambda *report: reports.append(report)} if sys.argv[2] == "progress" else {}
try:
    path = resolve_model(sys.argv[1], **watched)
except ModelError as error:
    sys.exit(f"ModelError: {error}")
print(json.dumps({"path": str(path), "reports": reports}))
"""


# Runs a command without root's right to write anywhere
AS_ANYBODY = ("setpriv", "--bounding-set", "-dac_override") if os.geteuid() == 0 else ()
needs_setpriv = pytest.mark.skipif(bool(AS_ANYBODY) and not shutil.which("setpriv"), reason="root may write anywhere")


def fetch(
    name: str, home: Path, endpoint: str, *, progress: bool = False, runner: tuple[str, ...] = (), **env: str
) -> dict[str, Any]:
    """The result of `resolve_model(name)`; its error message under "error"."""
    ours = ("HF_", "HUGGING", "TOKENLINE_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **env}
    environment |= dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), str(int(HANG_S)))
    command = [*runner, sys.executable, "-c", FETCH, name, "progress" if progress else "quiet"]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=HANG_S)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("ModelError: "), done.stderr
        return {"error": last.removeprefix("ModelError: ")}
    return json.loads(done.stdout.splitlines()[-1])


def test_a_repository_is_fetched_without_what_is_not_needed(hub: Hub, tmp_path: Path) -> None:
    result = fetch("org/model", tmp_path, hub.url, progress=True)
    folder = Path(result["path"])
    wanted = set(SAFETENSORS_REPO) - {"README.md", "pytorch_model.bin", "consolidated.safetensors"}
    wanted.remove("onnx/model.safetensors")
    assert {path.name for path in folder.iterdir()} == wanted
    assert (folder / "model-00001-of-00002.safetensors").read_bytes() == WEIGHTS
    total = sum(len(SAFETENSORS_REPO[name]) for name in wanted)
    assert result["reports"], "a bar needs something to show"
    assert {report[0] for report in result["reports"]} == {"downloading org/model"}
    assert {report[2] for report in result["reports"]} == {total}, "how much is to come is said from the start"
    done = [report[1] for report in result["reports"]]
    assert done == sorted(done)
    assert done[-1] <= total


def test_the_second_time_nothing_is_transferred_and_no_hub_is_needed(hub: Hub, tmp_path: Path) -> None:
    first = fetch("org/model", tmp_path, hub.url)
    transfers = len(hub.gets)
    assert fetch("org/model", tmp_path, hub.url)["path"] == first["path"]
    assert len(hub.gets) == transfers
    assert fetch("org/model", tmp_path, hub.url, HF_HUB_OFFLINE="1")["path"] == first["path"]


def test_tokenline_cache_holds_models_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for _ in range(2):
        path = Path(fetch("org/gguf:small-Q4_0.gguf", tmp_path, hub.url, TOKENLINE_CACHE=str(cache))["path"])
        assert path.is_relative_to(cache / "hub")
    assert [name for name, _ in hub.gets] == ["small-Q4_0.gguf"]
    assert not list(tmp_path.glob("hub/models--*"))


def test_a_model_in_the_clients_own_cache_is_used_where_it_is(hub: Hub, tmp_path: Path) -> None:
    first = fetch("org/gguf:small-Q4_0.gguf", tmp_path, hub.url)
    assert fetch("org/gguf:small-Q4_0.gguf", tmp_path, hub.url, TOKENLINE_CACHE=str(tmp_path / "cache")) == first
    assert len(hub.gets) == 1


@pytest.fixture
def read_only_cache(hub: Hub, tmp_path: Path) -> Iterator[Path]:
    """A cache with org/model and one file of org/gguf, in which nothing can be written."""
    cache = tmp_path / "cache"
    for name in ("org/model", "org/gguf:small-Q4_0.gguf"):
        fetch(name, tmp_path, hub.url, TOKENLINE_CACHE=str(cache))
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir() and not path.is_symlink())]
    for path in folders:
        path.chmod(0o555)
    yield cache
    for path in folders:
        path.chmod(0o755)


@needs_setpriv
@pytest.mark.parametrize("commit", [COMMIT, "f" * 40])
def test_a_model_in_a_read_only_cache_is_used(
    hub: Hub, read_only_cache: Path, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the hub has a newer one."""
    monkeypatch.setattr(sys.modules[__name__], "COMMIT", commit)
    transfers = len(hub.gets)
    for name in ("org/model", "org/gguf:small-Q4_0.gguf"):
        cache, temporary = str(read_only_cache), str(tmp_path)
        result = fetch(name, tmp_path, hub.url, runner=AS_ANYBODY, TOKENLINE_CACHE=cache, TMPDIR=temporary)
        assert Path(result["path"]).is_relative_to(read_only_cache)
    assert len(hub.gets) == transfers


@needs_setpriv
def test_what_a_read_only_cache_lacks_goes_to_a_temporary_folder(
    hub: Hub, read_only_cache: Path, tmp_path: Path
) -> None:
    cache, name = str(read_only_cache), "org/gguf:folder/big-Q8_0.gguf"
    for _ in range(2):
        result = fetch(name, tmp_path, hub.url, runner=AS_ANYBODY, TOKENLINE_CACHE=cache, TMPDIR=str(tmp_path))
        assert Path(result["path"]).is_relative_to(tmp_path / f"tokenline-{os.getuid()}" / "hub")
    assert [name for name, _ in hub.gets].count("folder/big-Q8_0.gguf") == 1


def test_without_a_home_models_go_to_a_temporary_folder(hub: Hub, tmp_path: Path) -> None:
    name, home = "org/gguf:small-Q4_0.gguf", "/dev/null/home"
    for _ in range(2):
        result = fetch(
            name,
            tmp_path,
            hub.url,
            TMPDIR=str(tmp_path),
            HOME=home,
            HF_HOME=f"{home}/hf",
            XDG_CACHE_HOME=f"{home}/cache",
        )
        assert Path(result["path"]).is_relative_to(tmp_path / f"tokenline-{os.getuid()}" / "hub")
    assert len(hub.gets) == 1


def test_a_broken_transfer_is_resumed_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    hub.break_at = CLIENT_CHUNK + 1_000_000
    result = fetch("org/model", tmp_path, hub.url)
    assert (Path(result["path"]) / "model-00001-of-00002.safetensors").read_bytes() == WEIGHTS
    ranges = [asked for name, asked in hub.gets if name == "model-00001-of-00002.safetensors"]
    assert ranges == [None, f"bytes={CLIENT_CHUNK}-"]


def test_one_gguf_file_of_a_repository(hub: Hub, tmp_path: Path) -> None:
    for name, content in [
        ("org/gguf:small-Q4_0.gguf", b"GGUF small"),
        ("org/gguf/small-Q4_0.gguf", b"GGUF small"),
        ("org/gguf/folder/big-Q8_0.gguf", b"GGUF big"),
        ("org/gguf@main:folder/big-Q8_0.gguf", b"GGUF big"),
    ]:
        assert Path(fetch(name, tmp_path, hub.url)["path"]).read_bytes() == content
    assert {name for name, _ in hub.gets} == {"small-Q4_0.gguf", "folder/big-Q8_0.gguf"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/absent", "no local model 'org/absent', and none at {hub} (a private one needs HF_TOKEN)"),
        ("org/gated", "org/gated is gated: accept its terms at {hub}/org/gated, then set HF_TOKEN to your token"),
        ("org/model@v9", "org/model at {hub} has no revision 'v9'"),
        ("org/gguf:absent.gguf", "org/gguf at {hub} has no file 'absent.gguf'"),
        ("org/gguf:Q4_K_M", "org/gguf has no GGUF file for 'Q4_K_M'; it has Q8_0, Q4_0"),
        ("org/model:Q4_K_M", "org/model has no GGUF files, so none for 'Q4_K_M'; leave out ':Q4_K_M'"),
        (
            "org/split:Q8_0",
            "org/split: m-Q8_0-00001-of-00002.gguf is one part of a split GGUF file, which cannot be read; choose "
            "another quantization",
        ),
        ("org/pickle", "org/pickle has no model.safetensors and no GGUF file; only these weights can be read"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(hub: Hub, tmp_path: Path, name: str, message: str) -> None:
    assert fetch(name, tmp_path, hub.url) == {"error": message.format(hub=hub.url)}


def test_no_network_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"  # bound, so that nobody else can listen there
        message = f"no local model 'org/model', and the hub at {nobody} cannot be reached (no network?)"
        assert fetch("org/model", tmp_path, nobody) == {"error": message}
        message = "org/model is not in the cache, and HF_HUB_OFFLINE forbids downloading it"
        assert fetch("org/model", tmp_path, nobody, HF_HUB_OFFLINE="1") == {"error": message}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("org/gguf", b"GGUF big"),  # no Q4_K_M, so Q8_0
        ("org/gguf:q4_0", b"GGUF small"),
        ("qwen3:0.6b", b"GGUF qwen"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B-GGUF", b"GGUF qwen"),
        ("hf.co/org/gguf:Q4_0", b"GGUF small"),
        ("org/split", b"GGUF 2"),  # the parts of a split file cannot be read
    ],
)
def test_the_gguf_file_that_a_name_means(hub: Hub, tmp_path: Path, name: str, content: bytes) -> None:
    first = Path(fetch(name, tmp_path, hub.url)["path"])
    assert first.read_bytes() == content
    offline = fetch(name, tmp_path, hub.url, HF_HUB_OFFLINE="1")
    assert Path(offline["path"]) == first
    hub.server.server_close()
    assert Path(fetch(name, tmp_path, "http://127.0.0.1:9")["path"]) == first, "what is here needs no network"


@pytest.mark.parametrize("name", ["org/gguf", "org/gguf:Q4_0", "qwen3:0.6b"])
def test_no_network_is_one_line_for_every_kind_of_name(tmp_path: Path, name: str) -> None:
    message = f"no local model '{name}', and the hub at http://127.0.0.1:9 cannot be reached (no network?)"
    assert fetch(name, tmp_path, "http://127.0.0.1:9") == {"error": message}


@pytest.mark.parametrize(
    "name",
    [
        "a.gguf",
        "models/a.gguf",
        "/abs/a",
        "./a",
        "../a/b",
        "~/a",
        "a/b/c",
        "a b",
        "a\\b",
        "a/",
        "a\0",
        "öl/x",
    ],
)
def test_a_path_that_does_not_exist_is_not_asked_of_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"^no such file or folder, and not a hub id: ") as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)
