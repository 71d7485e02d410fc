"""A model's files from a Hugging Face hub, by the hub's own client.

Knows hub ids and which files of a repository a model needs; the client knows the protocol, the cache folder
(HF_HOME), the token (HF_TOKEN), how a broken transfer is resumed, and offline use. Called by `fetch`. The client is
imported when it is needed, because importing it takes longer than `tokenline --help` should.
"""

import errno
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenline.models.errors import ModelError
from tokenline.models.progress import Progress, no_progress

MODEL_FILES = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
]
NOT_MODEL_FILES = ["*/*"]  # folders hold the same weights in other formats
ATTEMPTS = 3  # once the client itself has given up resuming; complete files are kept between attempts

PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
NAME = re.compile(rf"(?P<repo>{PART}(?:/{PART})?)(?:@(?P<revision>[^:\s]+?))?(?::(?P<file>[^:\s]+\.gguf))?")
NAME_WITH_FILE = re.compile(rf"(?P<repo>{PART}/{PART})/(?P<file>[^:@\s]+\.gguf)")


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub: `org/name`, `org/name@revision`, `org/name:file.gguf` or `org/name/file.gguf`."""

    repo: str
    revision: str | None = None
    file: str | None = None  # one GGUF file of the repository

    @classmethod
    def parse(cls, name: str) -> "HubName | None":
        """None when `name` cannot be a hub id."""
        if match := NAME_WITH_FILE.fullmatch(name):
            return cls(match["repo"], None, match["file"])
        match = NAME.fullmatch(name)
        if match is None or match["repo"].lower().endswith((".gguf", ".safetensors")):
            return None
        return cls(match["repo"], match["revision"], match["file"])

    def __str__(self) -> str:
        return self.repo + (f"@{self.revision}" if self.revision else "") + (f":{self.file}" if self.file else "")


def fetch_hub_model(name: HubName, *, progress: Progress = no_progress) -> Path:
    """The folder of a repository's model files, or the path of the one GGUF file that `name` names.

    Files in the client's cache are not downloaded again. Raises ModelError with one line.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    bars: Any = _bars_for(str(name), progress)
    if file := name.file:
        return Path(_explained(name, lambda: hf_hub_download(name.repo, file, revision=name.revision, tqdm_class=bars)))
    folder = _explained(
        name,
        lambda: snapshot_download(
            name.repo,
            revision=name.revision,
            allow_patterns=MODEL_FILES,
            ignore_patterns=NOT_MODEL_FILES,
            tqdm_class=bars,
        ),
    )
    if not any(Path(folder).glob("*.safetensors")):
        raise ModelError(_without_weights(name))
    return Path(folder)


def _without_weights(name: HubName) -> str:
    """Say what the repository has instead of safetensors."""
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(name.repo, revision=name.revision)
    except Exception:  # only to make the message better
        files = []
    gguf = sorted(file for file in files if file.lower().endswith(".gguf"))
    if gguf:
        return f"{name} has GGUF files ({len(gguf)}) and no safetensors; name one, e.g. {name.repo}:{gguf[0]}"
    return f"{name} has no model.safetensors; only safetensors and GGUF weights can be read"


def _explained(name: HubName, fetch: Callable[[], Any]) -> str:
    """Run `fetch`; turn what goes wrong into one line, and try again what a broken connection may have caused."""
    attempts = 0
    while True:
        attempts += 1
        try:
            return str(fetch())
        except Exception as error:  # the client raises errors of five libraries; each must end as one line
            if attempts == ATTEMPTS or not _is_transport_error(error):
                raise ModelError(_explanation(name, error)) from error


def _is_transport_error(error: Exception) -> bool:
    """Whether the connection broke during a transfer. An answer of the hub, even an error, is not such a case."""
    from huggingface_hub.errors import HfHubHTTPError

    return type(error).__name__ in ("ReadError", "RemoteProtocolError", "ReadTimeout") or (
        isinstance(error, OSError) and not isinstance(error, HfHubHTTPError) and "Consistency check" in str(error)
    )


def _explanation(name: HubName, error: Exception) -> str:
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    match error:
        case errors.GatedRepoError():
            return f"{name.repo} is gated: accept its terms at {hub}/{name.repo}, then set HF_TOKEN to your token"
        case errors.RepositoryNotFoundError():
            return f"no local model {name.repo!r}, and none at {hub} (a private one needs HF_TOKEN)"
        case errors.RevisionNotFoundError():
            return f"{name.repo} at {hub} has no revision {name.revision!r}"
        case errors.RemoteEntryNotFoundError():
            return f"{name.repo} at {hub} has no file {name.file!r}"
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            if constants.is_offline_mode():
                return f"{name} is not in the cache, and HF_HUB_OFFLINE forbids downloading it"
            return f"no local model {str(name)!r}, and the hub at {hub} cannot be reached (no network?)"
        case errors.HFValidationError():
            return f"not a hub id: {str(name)!r}"
        case errors.HfHubHTTPError():
            return f"the hub at {hub} answered HTTP {error.response.status_code} for {name.repo}"
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the disk is full: cannot store {name} in {constants.HF_HUB_CACHE}"
        case _:
            first_line = (str(error).strip().splitlines() or [""])[0]
            return f"cannot download {name} from {hub}: {type(error).__name__}: {first_line}"


def _bars_for(what: str, progress: Progress) -> type:
    """A class that the client uses as a tqdm bar and that reports instead of drawing.

    The client has several bars: files, bytes received, bytes written. The byte bar that is furthest is reported.
    """
    from tqdm.std import tqdm

    furthest = 0

    class ReportingBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **options | {"file": io.StringIO(), "leave": False, "disable": False})

        def display(self, *args: Any, **options: Any) -> None:
            nonlocal furthest
            if self.unit == "B" and self.n > furthest:
                furthest = int(self.n)
                progress(f"downloading {what}", furthest, int(self.total) if self.total else None)

    return ReportingBar
