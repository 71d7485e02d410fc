"""A model's files from a Hugging Face hub, by the hub's own client.

Knows which files of a repository a model needs; `hub_names` knows what a model may be called. The client knows the
protocol, the cache folder (HF_HOME), the token (HF_TOKEN), how a broken transfer is resumed, and offline use. Called by
`fetch`. The client is imported when it is needed, because importing it takes longer than `tokenline --help` should.
"""

import errno
import io
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tokenline.models.errors import ModelError
from tokenline.models.hub_names import HubName, choose_gguf
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

T = TypeVar("T")


def fetch_hub_model(name: HubName, *, progress: Progress = no_progress) -> Path:
    """The folder of a repository's model files, or the path of one GGUF file: the one that `name` names, or the one
    that suits where the repository has only such files.

    Files in the client's cache are not downloaded again. Raises ModelError with one line.
    """
    if name.file:
        return _fetch_file(name, name.file, progress)
    files = _files_of(name)
    if not name.quant and any(file.endswith(".safetensors") and "/" not in file for file in files):
        return _fetch_folder(name, progress)
    file = choose_gguf(name, files)
    if file is None and name.quant:
        raise ModelError(f"{name.repo} has no GGUF files, so none for {name.quant!r}; leave out ':{name.quant}'")
    if file is None:
        raise ModelError(f"{name} has no model.safetensors and no GGUF file; only these weights can be read")
    return _fetch_file(name, file, progress)


def _fetch_file(name: HubName, file: str, progress: Progress) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(name.repo, file, revision=name.revision), str):
        # The client below tries for 23 s before it believes that there is no network; this asks once.
        _explained(name, lambda: get_hf_file_metadata(hf_hub_url(name.repo, file, revision=name.revision)))
    bars: Any = _bars_for(str(name), progress)
    return Path(_explained(name, lambda: hf_hub_download(name.repo, file, revision=name.revision, tqdm_class=bars)))


def _fetch_folder(name: HubName, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    bars: Any = _bars_for(str(name), progress, lambda: _size_of_folder(name))
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
        raise ModelError(f"{name} has no model.safetensors and no GGUF file; only these weights can be read")
    return Path(folder)


def _size_of_folder(name: HubName) -> int | None:
    """Bytes of the files that a model needs. None: the hub does not say."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import filter_repo_objects

    try:
        tree = HfApi().list_repo_tree(name.repo, revision=name.revision, recursive=True)
        files = [entry for entry in tree if isinstance(entry, RepoFile)]
    except Exception:  # only to show how much is to come
        return None
    needed = filter_repo_objects(
        files, allow_patterns=MODEL_FILES, ignore_patterns=NOT_MODEL_FILES, key=lambda file: file.path
    )
    return sum(file.size for file in needed)


def _files_of(name: HubName) -> list[str]:
    """The names of a repository's files; without a hub, of those that are in the cache."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import DEFAULT_REVISION
    from huggingface_hub.errors import HfHubHTTPError

    revision = name.revision or DEFAULT_REVISION

    def ask() -> list[str]:
        try:
            return [file.rfilename for file in HfApi().model_info(name.repo, revision=revision).siblings or []]
        except HfHubHTTPError:  # the hub's answer
            raise
        except Exception:  # no network, or told to go without
            if files := _cached_files(name.repo, revision):
                return files
            raise

    return _explained(name, ask)


def _cached_files(repo_id: str, revision: str) -> list[str]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return [
        file.file_path.relative_to(cached.snapshot_path).as_posix()
        for repo in repos
        if (repo.repo_id, repo.repo_type) == (repo_id, "model")
        for cached in repo.revisions
        if revision in (cached.commit_hash, *cached.refs)
        for file in cached.files
    ]


def _explained(name: HubName, fetch: Callable[[], T]) -> T:
    """Run `fetch`; turn what goes wrong into one line, and try again what a broken connection may have caused."""
    from huggingface_hub.utils import logging

    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()  # its warnings tell of each attempt; what counts is how it ends
    attempts = 0
    while True:
        attempts += 1
        try:
            return fetch()
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
            return _unreachable(name)
        case errors.HFValidationError():
            return f"not a hub id: {str(name)!r}"
        case errors.HfHubHTTPError():
            return f"the hub at {hub} answered HTTP {error.response.status_code} for {name.repo}"
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the disk is full: cannot store {name} in {constants.HF_HUB_CACHE}"
        case _ if type(error).__name__ in ("ConnectError", "ConnectTimeout"):  # of whichever library the client uses
            return _unreachable(name)
        case _:
            first_line = (str(error).strip().splitlines() or [""])[0]
            return f"cannot download {name} from {hub}: {type(error).__name__}: {first_line}"


def _unreachable(name: HubName) -> str:
    from huggingface_hub import constants

    return f"no local model {str(name)!r}, and the hub at {constants.ENDPOINT} cannot be reached (no network?)"


def _bars_for(what: str, progress: Progress, size: Callable[[], int | None] = lambda: None) -> type:
    """A class that the client uses as a tqdm bar and that reports instead of drawing.

    The client has several bars: files, bytes received, bytes written. The byte bar that is furthest is reported.
    `size` is asked once, when there is something to report: a bar of several files learns of them one by one.
    """
    from tqdm.std import tqdm

    furthest = 0
    total = cache(size)

    class ReportingBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **options | {"file": io.StringIO(), "leave": False, "disable": False})

        def display(self, *args: Any, **options: Any) -> None:
            nonlocal furthest
            if self.unit == "B" and self.n > furthest:
                furthest = int(self.n)
                progress(f"downloading {what}", furthest, total() or (int(self.total) if self.total else None))

    return ReportingBar
