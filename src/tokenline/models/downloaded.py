"""The models that were downloaded to this machine: which there are, how large they are, and removing one.

Knows the places where downloads are kept: tokenline's own cache folder and the hub client's. Does not look inside
the models' files.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tokenline.models.cache import cache_folder, writable_cache
from tokenline.models.errors import ModelError
from tokenline.models.fetch import DEFAULT_MODEL, DEFAULT_NAME, is_default_model
from tokenline.models.hub_cache import hub_caches
from tokenline.models.hub_names import SHORT_NAMES, HubName, choose_gguf, is_gguf_model, quantization_of


@dataclass(frozen=True, slots=True)
class DownloadedModel:
    name: str  # `serve` takes it; of the default model, the name that clients see
    size: int  # bytes on disk
    path: Path
    remove: Callable[[], None] = field(compare=False, repr=False)  # raises OSError


def downloaded_models() -> list[DownloadedModel]:
    """All that are here, by name."""
    return sorted([*_default_model(), *_hub_models()], key=lambda model: model.name.lower())


def find_downloaded(name: str) -> list[DownloadedModel]:
    """Those that `name` means: a model as `downloaded_models` names it, or all files of a repository. Raises
    ModelError if there is none.
    """
    models = downloaded_models()
    name = DEFAULT_NAME if is_default_model(name) else name
    names = {name.lower()}
    with contextlib.suppress(ModelError):
        if hub_name := HubName.parse(name):
            names |= {hub_name.repo.lower(), str(hub_name).lower()}
            if hub_name.quant or hub_name.file:
                names = {str(hub_name).lower()}
    found = [model for model in models if model.name.lower() in names or _repo_of(model.name).lower() in names]
    if not found:
        raise ModelError(f"no downloaded model {name!r}; `tokenline models` lists those that are here")
    return found


def _repo_of(name: str) -> str:
    return SHORT_NAMES.get(name, name.split(":")[0])


def _default_model() -> Iterator[DownloadedModel]:
    def remove(path: Path) -> None:
        path.unlink()
        for left in path.parent.glob(f"{path.name}.*"):  # its marker and its lock
            left.unlink(missing_ok=True)

    for folder in {cache_folder(), writable_cache()}:
        path = folder / "models" / DEFAULT_MODEL.name
        if path.is_file():
            yield DownloadedModel(DEFAULT_NAME, path.stat().st_size, path, partial(remove, path))


def _hub_models() -> Iterator[DownloadedModel]:
    """One for each repository with safetensors, one for each GGUF file of the others."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    repos: list[Any] = []
    for folder in hub_caches():
        with contextlib.suppress(CacheNotFound):
            repos += scan_cache_dir(folder).repos
    for repo in repos:
        if repo.repo_type != "model":
            continue
        for revision in repo.revisions:
            files = {file.file_path.relative_to(revision.snapshot_path).as_posix(): file for file in revision.files}
            if any(name.endswith(".safetensors") for name in files) and "config.json" in files:
                current = "main" in revision.refs or len(repo.revisions) == 1
                name = repo.repo_id if current else f"{repo.repo_id}@{revision.commit_hash}"
                remove = partial(_remove, repo, list(revision.files))
                yield DownloadedModel(name, revision.size_on_disk, revision.snapshot_path, remove)
                continue
            for name in filter(is_gguf_model, files):
                file = files[name]
                remove = partial(_remove, repo, [file])
                yield DownloadedModel(
                    _gguf_name(repo.repo_id, name, list(files)), file.size_on_disk, file.file_path, remove
                )


def _gguf_name(repo: str, file: str, files: list[str]) -> str:
    """The shortest name that means this file."""
    short = next((short for short, of in SHORT_NAMES.items() if of == repo), None)
    if short and choose_gguf(HubName(repo), files) == file:
        return short
    quant = quantization_of(file)
    if quant and choose_gguf(HubName(repo, quant=quant), files) == file:
        return f"{repo}:{quant}"
    return f"{repo}:{file}"


def _remove(repo: Any, files: list[Any]) -> None:
    """Remove files of a repository from the hub client's cache; with the last one, the repository.

    The client's own `delete_revisions` goes by the commit alone, which copies of a repository share.
    """
    gone = {file.file_path for file in files}
    still_used = {
        file.blob_path for revision in repo.revisions for file in revision.files if file.file_path not in gone
    }
    for file in files:
        file.file_path.unlink(missing_ok=True)
        if file.blob_path not in still_used:
            file.blob_path.unlink(missing_ok=True)
    if not any(path.is_file() for path in (repo.repo_path / "snapshots").rglob("*")):
        shutil.rmtree(repo.repo_path)
