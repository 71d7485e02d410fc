"""The folder that vLLM is given says what the GGUF file says."""

from pathlib import Path

import torch
from bench.hf_folder import write_hf_folder

from tests.tiny_gguf import make_tiny_gguf
from tokenline.models.load import read_config
from tokenline.models.weights import open_weights
from tokenline.render.renderer import Renderer


def test_the_folder_holds_the_same_model(tmp_path: Path):
    gguf, folder = make_tiny_gguf("llama", tmp_path / "tiny.gguf", quant="Q4_1"), tmp_path / "folder"
    write_hf_folder(gguf, folder)
    assert read_config(folder) == read_config(gguf)
    ours, theirs = dict(open_weights(gguf).items()), dict(open_weights(folder).items())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name].bfloat16(), theirs[name].bfloat16()) for name in ours)
    text = "The keeper 的档案 🙂 has 1234 books.\n"
    ids = [Renderer.from_model(path).tokenizer.encode(text) for path in (gguf, folder)]
    assert ids[0] == ids[1]
    assert ids[0]
