"""What a model's name means. The default model is the real one."""

import hashlib
import os
from pathlib import Path

import pytest

from tokenline.models.errors import ModelError
from tokenline.models.fetch import DEFAULT_MODEL, cache_folder, fetch_default_model, resolve_model
from tokenline.models.packaged import PackagedFile


def test_no_name_is_the_default_model(smollm2: Path) -> None:
    path = resolve_model(None)
    assert path == smollm2 == cache_folder() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    content = path.read_bytes()
    assert content[:4] == b"GGUF"
    assert len(content) == DEFAULT_MODEL.size
    assert hashlib.sha256(content).hexdigest() == DEFAULT_MODEL.sha256


def test_verifying_the_default_model_hashes_it(smollm2: Path) -> None:
    whats: set[str] = set()
    assert fetch_default_model(verify=True, progress=lambda what, done, total: whats.add(what)) == smollm2
    assert whats == {"checking SmolLM2-135M-Instruct.Q4_1.gguf"}


def test_an_existing_path_is_that_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "model").mkdir()
    (tmp_path / "org" / "model" / "config.json").touch()
    file = tmp_path / "my model.gguf"
    file.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("org/model") == Path("org/model")  # a folder comes before a hub id of the same name
    assert resolve_model(str(file)) == file
    assert resolve_model(" my model.gguf\n") == Path("my model.gguf")
    assert resolve_model("~/my model.gguf") == file


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert resolve_model(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"several GGUF files; name one of them: a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert resolve_model(str(tmp_path)) == tmp_path


def test_what_is_not_a_model_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(ModelError, match=r"README.md is not a model: give a .gguf file, or a folder with config.json"):
        resolve_model(str(tmp_path / "README.md"))
    with pytest.raises(ModelError, match=r"is not a model: it has neither config.json nor a .gguf file"):
        resolve_model(str(tmp_path))
    (tmp_path / "tokenizer.json").touch()
    assert resolve_model(str(tmp_path)) == tmp_path, "enough to render"


def test_the_default_model_by_name(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model("smollm2-135m-instruct") == resolve_model("smollm2:135m") == smollm2


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_said_to_be_empty(name: str) -> None:
    with pytest.raises(ModelError, match="name is empty"):
        resolve_model(name)


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLINE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


def folder_of_default_model(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the default model is looked for and put; nothing is fetched."""
    folders: list[Path] = []

    def remember(source: PackagedFile, folder: Path, **options: object) -> Path:
        folders.append(folder)
        return folder / source.name

    monkeypatch.setattr("tokenline.models.fetch.fetch_packaged_file", remember)
    fetch_default_model()
    return folders[0]


def test_the_default_model_goes_where_something_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    chosen = tmp_path / "chosen"
    monkeypatch.setenv("TOKENLINE_CACHE", str(chosen))
    assert folder_of_default_model(monkeypatch) == chosen / "models"
    monkeypatch.setattr("os.access", lambda path, mode: False)  # from here on all is read-only
    temporary = tmp_path / f"tokenline-{os.getuid()}"
    for _ in range(2):
        assert folder_of_default_model(monkeypatch) == temporary / "models"
    assert [record.getMessage() for record in caplog.records] == [
        f"{chosen} cannot be written to; downloads and compiled kernels go to {temporary}, which may not last. "
        "To keep them, set TOKENLINE_CACHE to a folder that can be written to"
    ]
    (chosen / "models").mkdir(parents=True)
    (chosen / "models" / DEFAULT_MODEL.name).touch()
    assert folder_of_default_model(monkeypatch) == chosen / "models"


def test_nothing_can_be_written_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    monkeypatch.setenv("TOKENLINE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        ModelError, match=r"neither .*/file/cache nor a temporary folder can be written to; set TOKENLINE"
    ):
        fetch_default_model()
