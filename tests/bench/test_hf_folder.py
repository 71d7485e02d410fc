"""The folder that vLLM is given says what the GGUF file says."""

from pathlib import Path

import numpy as np
from bench.hf_folder import write_hf_folder

from tests.tiny_gguf import make_tiny_gguf
from tokenline.models.load import read_config
from tokenline.models.weights import open_checkpoint
from tokenline.render.renderer import Renderer


def test_the_folder_holds_the_same_model(tmp_path: Path):
    gguf, folder = make_tiny_gguf("llama", tmp_path / "tiny.gguf", quant="Q4_1"), tmp_path / "folder"
    write_hf_folder(gguf, folder)
    assert read_config(folder) == read_config(gguf)
    ours, theirs = open_checkpoint(gguf), open_checkpoint(folder)
    assert ours.shapes == theirs.shapes
    for name in ours.shapes:
        ((_, stored),) = theirs.pieces(name)
        assert stored.kind == "BF16"
        np.testing.assert_allclose(
            stored.floats().reshape(ours.shapes[name]), ours.read(name), rtol=2**-8, err_msg=name
        )
    text = "The keeper 的档案 🙂 has 1234 books.\n"
    ids = [Renderer.from_model(path).tokenizer.encode(text) for path in (gguf, folder)]
    assert ids[0] == ids[1]
    assert ids[0]
