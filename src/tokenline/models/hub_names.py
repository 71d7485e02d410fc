"""The names of models on the hub, and which GGUF file of a repository a name means.

Text only: nothing here asks the hub. `hub` fetches what is named.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from tokenline.models.errors import ModelError

# Small models of families that tokenline runs: in GGUF, and to be had without an account. Checked in December 2026
# against what public sources say of these repositories (names of files, sizes, licences), not at the hub itself. All
# are Apache-2.0, but for gemma3 (Gemma terms) and llama3.2 (Llama 3.2 licence).
SHORT_NAMES = {
    "gemma3:1b": "ggml-org/gemma-3-1b-it-GGUF",
    "llama3.2:1b": "bartowski/Llama-3.2-1B-Instruct-GGUF",
    "llama3.2:3b": "bartowski/Llama-3.2-3B-Instruct-GGUF",
    "mistral:7b": "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
    "qwen2.5:0.5b": "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
    "qwen2.5:1.5b": "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
    "qwen2.5-coder:1.5b": "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    "qwen3:0.6b": "Qwen/Qwen3-0.6B-GGUF",
    "qwen3:1.7b": "Qwen/Qwen3-1.7B-GGUF",
    "qwen3:4b": "Qwen/Qwen3-4B-GGUF",
    "qwen3:8b": "Qwen/Qwen3-8B-GGUF",
    "smollm2:360m": "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
    "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
    "smollm3:3b": "ggml-org/SmolLM3-3B-GGUF",
}

PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
NAME = re.compile(
    rf"(?P<repo>{PART}(?:/{PART})?)(?:@(?P<revision>[^:\s]+?))?(?::(?:(?P<file>[^:\s]+\.gguf)|(?P<quant>{PART})))?"
)
NAME_WITH_FILE = re.compile(rf"(?P<repo>{PART}/{PART})/(?P<file>[^:@\s]+\.gguf)")
ADDRESS = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/|hf://)(?P<rest>.+)", re.IGNORECASE)

# What llama.cpp takes if no quantization is named (common/download.cpp, April 2026), then any of four bits, then any.
PREFERRED = ("Q4_K_M", "Q8_0")
PART_OF_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
QUANTIZATION = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|B?F16|F32)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub: `org/name`, `org/name@revision`, `org/name:file.gguf`, `org/name/file.gguf` or
    `org/name:Q4_K_M`; the hub's own addresses of these; or a short name.
    """

    repo: str
    revision: str | None = None
    file: str | None = None  # one GGUF file of the repository
    quant: str | None = None  # the GGUF file of this quantization
    short: str | None = None  # the short name by which it was called

    @classmethod
    def parse(cls, name: str) -> "HubName | None":
        """None when `name` cannot be a hub id. Raises ModelError for a short name that is not in the table."""
        if address := ADDRESS.fullmatch(name):
            return cls._of_address(address["rest"])
        if repo := SHORT_NAMES.get(name.lower()):
            return cls(repo, short=name.lower())
        if match := NAME_WITH_FILE.fullmatch(name):
            return cls(match["repo"], None, match["file"])
        match = NAME.fullmatch(name)
        if match is None or match["repo"].lower().endswith((".gguf", ".safetensors")):
            return None
        unknown_tag = match["quant"] is not None and "/" not in match["repo"]
        if unknown_tag or f"{name.lower()}:" in map(_family, SHORT_NAMES):  # or a family without a size
            raise ModelError(f"no short name {name!r}; there are {_short_names_like(match['repo'])}")
        quant = None if (match["quant"] or "").lower() == "latest" else match["quant"]
        return cls(match["repo"], match["revision"], match["file"], quant)

    @classmethod
    def _of_address(cls, rest: str) -> "HubName | None":
        """`org/name`, `org/name:Q4_K_M`, or as the browser shows them: `org/name/tree/main`, `.../blob/main/a.gguf`."""
        path = unquote(urlsplit(f"//hub/{rest}").path).strip("/")
        match path.split("/"):
            case [org, repo, "tree", revision]:
                return cls.parse(f"{org}/{repo}@{revision}")
            case [org, repo, "blob" | "resolve" | "raw", revision, *file] if file:
                found = cls.parse(f"{org}/{repo}/{'/'.join(file)}")
                revised = None if revision == "main" else revision
                return replace(found, revision=revised) if found and found.file else None
            case [org, repo, *_] if "/" not in f"{org}{repo}":
                return cls.parse(path)
            case _:
                return None

    def __str__(self) -> str:
        if self.short:
            return self.short
        part = self.file or self.quant
        return self.repo + (f"@{self.revision}" if self.revision else "") + (f":{part}" if part else "")


def _family(short: str) -> str:
    return short[: short.index(":") + 1]


def _short_names_like(family: str) -> str:
    """Those of the family, else all."""
    same = [short for short in SHORT_NAMES if _family(short) == f"{family.lower()}:"]
    return ", ".join(same or SHORT_NAMES)


def choose_gguf(name: HubName, files: Iterable[str]) -> str | None:
    """The GGUF file that `name` means, of a repository's files. None: the repository has no GGUF model.

    Without a quantization as in llama.cpp: Q4_K_M, else Q8_0, else one of four bits, else the first. Raises ModelError
    where there is none of the quantization that was asked for, or only one in several parts.
    """
    models = sorted(filter(is_gguf_model, files))
    if not models:
        return None
    found = _first_of(models, name.quant)
    if found is None:
        have = ", ".join(dict.fromkeys(quant for file in models if (quant := quantization_of(file)))) or models[0]
        raise ModelError(f"{name.repo} has no GGUF file for {name.quant!r}; it has {have}")
    if PART_OF_SPLIT.search(_stem(found)):
        raise ModelError(
            f"{name.repo}: {found} is one part of a split GGUF file, which cannot be read; choose another quantization"
        )
    return found


def _first_of(models: list[str], quant: str | None) -> str | None:
    whole = [file for file in models if not PART_OF_SPLIT.search(_stem(file))]
    ordered = whole or models
    if quant:  # in parts only if there is no other
        return _with_quant(whole, quant) or _with_quant(models, quant)
    for wanted in PREFERRED:
        if match := _with_quant(ordered, wanted):
            return match
    return next((file for file in ordered if (quantization_of(file) or "").upper().startswith("Q4")), ordered[0])


def _with_quant(models: list[str], quant: str) -> str | None:
    for test in (_ends_with, _contains):
        if match := next((file for file in models if test(_stem(file), quant.lower())), None):
            return match
    return None


def _stem(file: str) -> str:
    return file.lower().removesuffix(".gguf")


def _ends_with(stem: str, quant: str) -> bool:
    return re.search(rf"(?:^|[-._/]){re.escape(quant)}$", PART_OF_SPLIT.sub("", stem)) is not None


def _contains(stem: str, quant: str) -> bool:
    return re.search(rf"(?:^|[-._/]){re.escape(quant)}(?:[-./]|$)", stem) is not None


def quantization_of(file: str) -> str | None:
    """`Q4_K_M` of `folder/model-Q4_K_M.gguf`; None where the name does not say."""
    stem = PART_OF_SPLIT.sub("", re.sub(r"\.gguf$", "", file.rsplit("/", 1)[-1], flags=re.IGNORECASE))
    for start in re.finditer(r"[-._]", stem):
        if QUANTIZATION.fullmatch(stem, start.end()):
            return stem[start.end() :].upper()
    return None


def is_gguf_model(file: str) -> bool:
    """Whether a file is a model in GGUF, and not what goes with one: an image encoder, data behind a quantization."""
    name = file.rsplit("/", 1)[-1].lower()
    return name.endswith(".gguf") and not any(word in name for word in ("mmproj", "imatrix"))
