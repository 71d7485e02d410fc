"""A safetensors file is read as its reference implementation wrote it, and refused wherever that would refuse it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from tests.models.drive import refusal
from tokenline.models.errors import ModelError
from tokenline.models.safetensors_file import SafetensorsFile

TENSORS = {
    "a": torch.arange(12, dtype=torch.bfloat16).view(4, 3) / 7,
    "b": torch.arange(5, dtype=torch.float16) - 2.5,
    "c": torch.arange(6, dtype=torch.float32).view(3, 2) ** 9,
    "d": torch.tensor([[1e300, 1.0], [0.1, -1e-300]], dtype=torch.float64),
    "e": torch.arange(4, dtype=torch.int8),
    "none": torch.zeros(0, 7),
    "one": torch.tensor(3.0),
}


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_values_of_every_float_type(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "m.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in TENSORS.items()
    }
    kinds = {"a": "BF16", "b": "F16", "c": "F32", "d": "F64", "e": "I8", "none": "F32", "one": "F32"}
    assert {name: tensor.kind for name, tensor in file.tensors.items()} == kinds
    for name in ("a", "c", "d"):
        rows = TENSORS[name].float().numpy()
        np.testing.assert_array_equal(file.read(name, 0, len(rows)).floats(), rows)
        np.testing.assert_array_equal(file.read(name, 1, 2).floats(), rows[1:2])
    np.testing.assert_array_equal(file.read("b", 0, 5).floats(), TENSORS["b"].float().numpy()[None])


@pytest.mark.parametrize("header", [{}, {"__metadata__": {"format": "pt"}}])
def test_a_file_without_tensors(tmp_path: Path, header: Any) -> None:
    assert SafetensorsFile(write(tmp_path / "m.safetensors", header)).tensors == {}


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"{", "its header is not JSON"),
        (b"\xff{}", "its header is not JSON"),
        (b"[" * 200_000, "its header is not JSON"),
        ([], "its header is not a JSON object"),
        ({"x": 3}, "tensor x has no dtype"),
        ({"x": {**ENTRY, "dtype": None}}, "tensor x has no dtype"),
        ({"x": {**ENTRY, "shape": [-2]}}, "tensor x has no shape"),
        ({"x": {**ENTRY, "shape": [True, 2]}}, "tensor x has no shape"),
        ({"x": {**ENTRY, "data_offsets": [8, 0]}}, "tensor x has no data_offsets"),
        ({"x": {**ENTRY, "data_offsets": [0]}}, "tensor x has no data_offsets"),
        ({"x": {**ENTRY, "shape": [3]}}, r"tensor x of shape \[3\] in F32 cannot lie in 8 bytes"),
        ({"x": {**ENTRY, "shape": [2**40, 2**40]}}, "cannot lie in 8 bytes"),
        ({"x": {**ENTRY, "data_offsets": [4, 12]}}, "tensor x begins at byte"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [4, 12]}}, "tensor y begins at byte"),
        ({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, "its tensors end at byte .*, the file has"),
        ({}, "its tensors end at byte .*, the file has"),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: Any, reason: str) -> None:
    path = write(tmp_path / "m.safetensors", header, bytes(8))
    with pytest.raises(ModelError, match=rf"^m\.safetensors: not a complete safetensors file: .*{reason}"):
        SafetensorsFile(path)


@pytest.mark.parametrize("length", [0, 5, 2**40, 2**63 + 5])
def test_a_header_that_does_not_end(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(length.to_bytes(8, "little")[: 8 if length else 7] + b"{}")
    if length:
        with pytest.raises(ModelError, match="its header does not end"):
            SafetensorsFile(path)
    path.write_bytes(b"1234567")
    with pytest.raises(ModelError, match="its header does not end"):
        SafetensorsFile(path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(TENSORS, path)
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[: file.tensors["d"].offset + 9])
    with pytest.raises(ModelError, match=r"^m\.safetensors: .*ends inside tensor d; it was changed while it was read"):
        file.read("d", 0, 2)
    path.unlink()
    with pytest.raises(ModelError, match=r"tensor d cannot be read: No such file"):
        file.read("d", 0, 2)


WHOLE = save(TENSORS)


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_file_is_refused_or_read_as_the_reference_reads_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, 8 + int.from_bytes(WHOLE[:8], "little")))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged[: data.draw(st.sampled_from([len(WHOLE), len(WHOLE) - 1]))])
    message = refusal(lambda: SafetensorsFile(path))
    assert "\n" not in message
    try:
        with safe_open(path, framework="np") as reference:
            known = {name: tuple(reference.get_slice(name).get_shape()) for name in reference.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return  # what the reference refuses, we may read if it cannot be told from a good file
    if not message:
        assert {name: tensor.shape for name, tensor in SafetensorsFile(path).tensors.items()} == known
