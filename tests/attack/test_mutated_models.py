"""Mutated GGUF and safetensors headers: each is a model, or one ModelError. Memory and time are bounded."""

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits import HANG_S
from tests.tiny_gguf import make_tiny_gguf

MUTANTS = 300  # of each format
NUMBERS = (0, 1, 2**16, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)

# A worker opens each file that stdin names. A crash, a hang or another exception ends it with a traceback or a signal.
WORKER = """
import resource, sys
from pathlib import Path
from tokenline.models.errors import ModelError
from tokenline.models.weights import open_checkpoint
import psutil
space = psutil.Process().memory_info().vms + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (space, space))
refused = 0
for line in sys.stdin:
    path = Path(line.strip())
    print(path, file=sys.stderr, flush=True)
    try:
        open_checkpoint(path)
    except ModelError as error:
        refused += 1
        assert len(str(error)) < 1000, len(str(error))
print(refused)
"""


def refused(paths: list[Path]) -> int:
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input="".join(f"{path}\n" for path in paths),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout)


def mutants(data: bytes, header: int, seed: int) -> Iterator[bytes]:
    """Flipped bytes, numbers that mean too much, cuts, and pieces in the wrong place."""
    draw = random.Random(seed)
    for number in range(MUTANTS):
        mutant, place = bytearray(data), draw.randrange(header)
        match number % 4:
            case 0:
                for _ in range(draw.randrange(1, 9)):
                    mutant[draw.randrange(header)] = draw.randrange(256)
            case 1:
                value = struct.pack("<Q", draw.choice(NUMBERS))[: draw.choice((1, 4, 8))]
                mutant[place : place + len(value)] = value
            case 2:
                del mutant[place:]
            case _:
                size, other = draw.randrange(1, 64), draw.randrange(header)
                mutant[place : place + size] = mutant[other : other + size]
        yield bytes(mutant)


def test_gguf(tmp_path: Path) -> None:
    whole = make_tiny_gguf("qwen3", tmp_path / "whole.gguf").read_bytes()
    paths: list[Path] = []
    places = (24, len(whole) // 2) if len(whole) < 100_000 else (24, 40_000)
    for number, mutant in enumerate(mutants(whole, places[1], seed=1)):
        paths.append(tmp_path / f"{number}.gguf")
        paths[-1].write_bytes(mutant)
    assert refused(paths) > MUTANTS // 4


def test_safetensors(tmp_path: Path) -> None:
    make_tiny_gguf("qwen3", tmp_path / "whole.gguf")
    folder = tmp_path / "whole"
    whole, config = ((folder / name).read_bytes() for name in ("model.safetensors", "config.json"))
    header = 8 + int.from_bytes(whole[:8], "little")
    paths: list[Path] = []
    for number, mutant in enumerate(mutants(whole, header, seed=2)):
        paths.append(tmp_path / str(number))
        paths[-1].mkdir()
        (paths[-1] / "config.json").write_bytes(config)
        (paths[-1] / "model.safetensors").write_bytes(mutant)
    assert refused(paths) > MUTANTS // 2


CONFIG = {
    "hidden_size": (0, -1, 2**63, 1.5, "64", None, [], 10**400),
    "num_hidden_layers": (0, 10**9, -3),
    "num_attention_heads": (0, 3, 2**40),
    "num_key_value_heads": (0, 3, 5),
    "head_dim": (0, 1, 7, 2**31 - 1),
    "max_position_embeddings": (0, 2**63, float("nan")),
    "rms_norm_eps": (0, -1, float("nan"), float("inf")),
    "rope_parameters": (
        *({"rope_theta": value} for value in (1e-45, 0, float("inf"), -1, "x")),
        *({"rope_type": "linear", "rope_theta": 1e4, "factor": value} for value in (1e-45, 1e37, float("nan"))),
    ),
}


def test_values_of_a_config(tmp_path: Path) -> None:
    make_tiny_gguf("qwen3", tmp_path / "whole.gguf")
    whole = tmp_path / "whole"
    paths: list[Path] = []
    for key, values in CONFIG.items():
        for number, value in enumerate(values):
            paths.append(tmp_path / f"{key}-{number}")
            paths[-1].mkdir()
            config = json.loads((whole / "config.json").read_text()) | {key: value}
            (paths[-1] / "config.json").write_text(json.dumps(config))
            (paths[-1] / "model.safetensors").symlink_to(whole / "model.safetensors")
    assert refused(paths) == len(paths)


@pytest.mark.parametrize("value", ["../../etc/passwd", "/etc/passwd", "fifo", "gone", "..", "", 7, "folder"])
def test_an_index_of_shards_that_points_elsewhere(tmp_path: Path, value: str | int) -> None:
    make_tiny_gguf("qwen3", tmp_path / "whole.gguf")
    folder = tmp_path / "whole"
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": value}}))
    assert refused([folder]) == 1


@pytest.mark.parametrize("name", ["whole.gguf", "whole/config.json", "whole/model.safetensors"])
def test_a_fifo_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    make_tiny_gguf("qwen3", tmp_path / "whole.gguf")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert refused([tmp_path / name.split("/")[0]]) == 1


def test_arrays_of_hundreds_of_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    with path.open("wb") as file:
        count = 300 << 20
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a")
        file.write(struct.pack("<IIQ", 9, 0, count))
        file.truncate(file.tell() + count)
    assert refused([path]) == 1
