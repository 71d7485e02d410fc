"""What the composition decides itself: the served name. The composition as a whole is tested in `test_serve`."""

from pathlib import Path

from tokenline.cli.compose import name_of


def test_names() -> None:
    assert name_of(None, Path("/cache/SmolLM2-135M-Instruct.Q4_1.gguf")) == "SmolLM2-135M-Instruct"
    assert name_of("/x/tiny.Q8_0.gguf", Path("/x/tiny.Q8_0.gguf")) == "tiny.Q8_0"
    assert name_of("/x/my-model/", Path("/x/my-model")) == "my-model"
    assert name_of("org/model", Path("/hub/snapshots/0123")) == "org/model"
    assert name_of("org/model-GGUF:Q4_K_M", Path("/hub/m.gguf")) == "org/model-GGUF:Q4_K_M"
    assert name_of("https://huggingface.co/org/model", Path("/hub/m.gguf")) == "org/model"
    assert name_of("Qwen3:0.6B", Path("/hub/m.gguf")) == "qwen3:0.6b"
    assert name_of("smollm2:135m", Path("/x.gguf")) == "SmolLM2-135M-Instruct"
    assert name_of(".", Path(".")) == Path.cwd().name
