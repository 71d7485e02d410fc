"""What a model of the hub may be called, and which GGUF file a name means. `test_hub` fetches them."""

import pytest

from tokenline.models.errors import ModelError
from tokenline.models.hub_names import SHORT_NAMES, HubName, choose_gguf, quantization_of


@pytest.mark.parametrize(
    ("name", "repo", "revision", "file"),
    [
        ("gpt2", "gpt2", None, None),
        ("org/some-model_1.5B", "org/some-model_1.5B", None, None),
        ("org/model@v1.0", "org/model", "v1.0", None),
        ("org/model@refs/pr/1:a.gguf", "org/model", "refs/pr/1", "a.gguf"),
        ("org/model:a.Q4_0.gguf", "org/model", None, "a.Q4_0.gguf"),
        ("org/model-GGUF/sub/a.gguf", "org/model-GGUF", None, "sub/a.gguf"),
    ],
)
def test_hub_names(name: str, repo: str, revision: str | None, file: str | None) -> None:
    parsed = HubName.parse(name)
    assert parsed == HubName(repo, revision, file)
    assert HubName.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name-GGUF:Q4_K_M", HubName("org/name-GGUF", quant="Q4_K_M")),
        ("org/name-GGUF@v2:iq4_xs", HubName("org/name-GGUF", "v2", quant="iq4_xs")),
        ("org/name:latest", HubName("org/name")),  # as Ollama writes it
        ("hf.co/org/name", HubName("org/name")),
        ("hf.co/org/name:Q8_0", HubName("org/name", quant="Q8_0")),
        ("huggingface.co/org/name", HubName("org/name")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("https://huggingface.co/org/name/", HubName("org/name")),
        ("https://hf.co/org/name?library=transformers", HubName("org/name")),
        ("hf://org/name", HubName("org/name")),
        ("https://huggingface.co/org/name/tree/main", HubName("org/name", "main")),
        ("https://huggingface.co/org/name/tree/v1.5", HubName("org/name", "v1.5")),
        ("https://huggingface.co/org/name/blob/main/a-Q4_0.gguf", HubName("org/name", None, "a-Q4_0.gguf")),
        ("https://huggingface.co/org/name/resolve/v2/d/a.gguf?download=true", HubName("org/name", "v2", "d/a.gguf")),
        ("qwen3:0.6b", HubName("Qwen/Qwen3-0.6B-GGUF", short="qwen3:0.6b")),
        ("Qwen3:0.6B", HubName("Qwen/Qwen3-0.6B-GGUF", short="qwen3:0.6b")),
        ("hf.co/org", None),
        ("https://huggingface.co/", None),
        ("https://huggingface.co/org/name/blob/main/README.md", None),
        ("https://huggingface.co/org/name/discussions/1", None),
        ("https://example.org/org/name", None),
    ],
)
def test_tags_addresses_and_short_names(name: str, expected: HubName | None) -> None:
    assert HubName.parse(name) == expected
    if expected is not None:
        assert HubName.parse(str(expected)) == expected


@pytest.mark.parametrize("name", ["qwen3", "qwen3:600b", "QWEN3:600b"])
def test_a_short_name_that_does_not_exist_names_those_of_the_family(name: str) -> None:
    with pytest.raises(ModelError, match=r"no short name .*; there are qwen3:0.6b, qwen3:1.7b, qwen3:4b, qwen3:8b$"):
        HubName.parse(name)


def test_any_other_short_name_names_all() -> None:
    with pytest.raises(ModelError, match=r"no short name 'foo:7b'; there are gemma3:1b, .*smollm3:3b"):
        HubName.parse("foo:7b")


def test_every_short_name_leads_to_a_gguf_repository() -> None:
    for short, repo in SHORT_NAMES.items():
        assert HubName.parse(short) == HubName(repo, short=short)
        assert HubName.parse(repo) == HubName(repo)
        assert repo.endswith("-GGUF")


QWEN = ["README.md", "mmproj-Qwen-f16.gguf", "qwen-fp16.gguf", "qwen-q2_k.gguf", "qwen-q4_0.gguf", "qwen-q4_k_m.gguf"]
QWEN += ["qwen-q4_k_s.gguf", "qwen-q8_0.gguf"]


@pytest.mark.parametrize(
    ("files", "quant", "chosen"),
    [
        (QWEN, None, "qwen-q4_k_m.gguf"),
        (QWEN, "Q8_0", "qwen-q8_0.gguf"),
        (QWEN, "fp16", "qwen-fp16.gguf"),
        (QWEN[:5] + QWEN[-1:], None, "qwen-q8_0.gguf"),
        (QWEN[:5], None, "qwen-q4_0.gguf"),
        (QWEN[:4], None, "qwen-fp16.gguf"),
        (QWEN[:2], None, None),
        (["README.md"], None, None),
        (["m.IQ4_XS.gguf", "m.Q4_K_M.gguf"], "iq4_xs", "m.IQ4_XS.gguf"),
        (["m-bf16.gguf", "m-f16.gguf"], "F16", "m-f16.gguf"),
        (["m-Q4_K_M-imat.gguf", "m-Q8_0.gguf"], None, "m-Q4_K_M-imat.gguf"),
        (["Q4_K_M/m.gguf", "Q8_0/m.gguf"], "Q8_0", "Q8_0/m.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-Q4_0.gguf"], "UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        (["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M.gguf"], None, "m-Q4_K_M.gguf"),
    ],
)
def test_the_file_of_a_repository(files: list[str], quant: str | None, chosen: str | None) -> None:
    assert choose_gguf(HubName("org/name", quant=quant), files) == chosen


def test_a_quantization_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ModelError, match="org/name has no GGUF file for 'Q4_K'; it has Q2_K, Q4_0, Q4_K_M, Q4_K_S, Q8"):
        choose_gguf(HubName("org/name", quant="Q4_K"), QWEN)


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("folder/Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("m-UD-IQ2_XXS-00001-of-00003.gguf", "UD-IQ2_XXS"),
        ("qwen-fp16.gguf", None),
        ("qwen-bf16.GGUF", "BF16"),
        ("model.gguf", None),
    ],
)
def test_the_quantization_of_a_file(file: str, quant: str | None) -> None:
    assert quantization_of(file) == quant
