"""The same decoder on an accelerator: near the CPU's float32 logits, in all dtypes. Skips itself without one."""

from pathlib import Path

import pytest
import torch

from tests.models.drive import Driver, Track, random_ids
from tests.tiny import make_tiny
from tokenline.models.load import load_model
from tokenline.models.torch.load import pick_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() or torch.backends.mps.is_available()), reason="no accelerator on this machine"
    ),
]


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-2), ("bfloat16", 0.1), ("int8", 0.2)])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_as_on_the_cpu(family: str, dtype: str, bound: float, tmp_path: Path) -> None:
    device = pick_device("auto")
    assert device != "cpu"
    folder = make_tiny(family, tmp_path / "m")
    ids = random_ids(150)
    expected = Driver(load_model(folder, device="cpu", dtype="float32")).logits(ids)
    driver = Driver(load_model(folder, device=device, dtype=dtype))
    tracks = [Track(ids), Track(ids[:90]), Track(ids[:60])]
    driver.run(*((track, track.left - 10) for track in tracks))
    for _ in range(10):
        driver.run(*((track, 1) for track in tracks))
    forked = driver.fork(tracks[0], ids, 77)
    driver.run((forked, forked.left))
    for track, first in ((tracks[0], 0), (tracks[1], 0), (tracks[2], 0), (forked, 77)):
        reference = expected[first : first + len(track.logits)]
        assert (track.all_logits - reference).norm() / reference.norm() < bound
