"""Which of its cache folders the hub's client works in: what TOKENLINE_CACHE says, else the client's own (HF_HOME).

A model that any of them holds is used there, also where it cannot be written to.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tokenline.models.cache import UNWRITABLE, chosen_cache, is_writable, writable_cache
from tokenline.models.errors import ModelError

T = TypeVar("T")


def hub_caches() -> list[Path]:
    """The folders in which models from a hub may lie. New ones go to the first, or where that cannot be written to, to
    the last.
    """
    from huggingface_hub import constants

    own, chosen = Path(constants.HF_HUB_CACHE), chosen_cache()
    caches = [own] if chosen is None else [chosen / "hub", own]
    return caches if is_writable(caches[0]) else [*caches, writable_cache() / "hub"]


def in_hub_cache(repo: str, fetch: Callable[[], T]) -> T:
    """Run `fetch`, which asks the client for files of a repository, with the client set to work in the right folder."""
    from huggingface_hub import constants

    kept = constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE, constants.HF_TOKEN_PATH
    refusal: ModelError | None = None
    try:
        for folder, offline in _places(repo):
            constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = str(folder), offline or kept[1]
            if not Path(kept[2]).parent.is_dir():  # the client fails to look for one below what is no folder
                constants.HF_TOKEN_PATH = str(folder / "token")
            try:
                return fetch()
            except ModelError as error:
                cause = error.__cause__
                missing = offline and not kept[1]  # the files that are there are not all
                if not missing and not (isinstance(cause, OSError) and cause.errno in UNWRITABLE):
                    raise
                refusal = error
    finally:
        constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE, constants.HF_TOKEN_PATH = kept
    assert refusal is not None
    raise refusal


def _places(repo: str) -> Iterator[tuple[Path, bool]]:
    """Folders to try, and whether to go without the hub there: a read-only one may hold an older version, which the
    client would replace.
    """
    from huggingface_hub.file_download import repo_folder_name

    caches = hub_caches()
    name = repo_folder_name(repo_id=repo, repo_type="model")
    for folder in caches:
        if (folder / name / "snapshots").is_dir():
            yield folder, False
            if not is_writable(folder / name):
                yield folder, True
    yield (caches[0] if is_writable(caches[0]) else caches[-1]), False
