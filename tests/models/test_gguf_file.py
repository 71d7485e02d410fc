"""GGUF files: the same as the gguf library reads, every stored type, and each way of being broken said in one line."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.drive import refusal
from tokenline.models.blocks import dequantize_blocks
from tokenline.models.errors import ModelError
from tokenline.models.gguf_file import GGUFFile

QUANTISABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def write(path: Path, tensors: dict[str, tuple[np.ndarray, str]], **metadata: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        key = key.replace("__", ".")
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    for name, (values, kind) in tensors.items():
        quantisation = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quantize(values, quantisation), raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)


@pytest.mark.parametrize("kind", QUANTISABLE)
def test_every_quantisable_type_reads_back(kind: str, values: np.ndarray, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"first": (values[:1], "F32"), "w": (values, kind), "v": (values[0], "F32")})
    file = GGUFFile(path)
    quantisation = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(values, quantisation), quantisation)
    assert file.tensors["w"].kind == kind
    assert file.tensors["w"].shape == (6, 64)
    np.testing.assert_array_equal(file.read("w"), expected)
    np.testing.assert_array_equal(file.read("w", 2, 5), expected[2:5])
    np.testing.assert_array_equal(file.read("v"), values[0])
    # and it is the matrix that went in, to the precision of the type
    step = {"F32": 0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 0.02, "Q5_0": 0.15, "Q5_1": 0.15}.get(kind, 0.3)
    assert np.abs(file.read("w") - values).max() <= step


def test_metadata_as_the_library_reads_it(smollm2: Path) -> None:
    ours, theirs = GGUFFile(smollm2), gguf.GGUFReader(smollm2)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        assert ours.metadata[name] == field.contents(), name
        assert type(ours.metadata[name]) in (str, int, float, bool, list)
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors[:8]:
        assert ours.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(ours.read_blocks(tensor.name), tensor.data.view(np.uint8))


def test_all_kinds_of_metadata(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "a__int": 7,
        "a__float": 0.5,
        "a__yes": True,
        "a__text": "héllo 你好 😀",
        "a__ints": [1, -2, 3],
        "a__floats": [0.5, -1.5],
        "a__flags": [True, False],
        "a__texts": ["", "a", "Ġworld", "你"],
        "a__nested": [[1, 2], [3, 4, 5]],
    }
    file = GGUFFile(write(tmp_path / "m.gguf", {}, **metadata))
    found = {key: value for key, value in file.metadata.items() if key.startswith("a.")}
    assert found == {key.replace("__", "."): value for key, value in metadata.items()}
    assert type(found["a.yes"]) is bool
    assert type(found["a.flags"][0]) is bool


@pytest.fixture
def whole(values: np.ndarray, tmp_path: Path) -> bytes:
    path = write(
        tmp_path / "whole.gguf",
        {"blk.0.w": (values, "Q4_0"), "v": (values[0], "F32")},
        llama__context_length=10,
        tokenizer__ggml__tokens=["a", "bc", "你"],
        tokenizer__ggml__scores=[1.0, 2.0],
    )
    return path.read_bytes()


def test_truncated_anywhere(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"^cut\.gguf: (truncated|only \d+ bytes)") as caught:
            GGUFFile(path)
        assert "\n" not in str(caught.value)


def read_all(file: GGUFFile) -> None:
    for name in file.tensors:
        file.read(name)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_never_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any damage is a ModelError, or harmless: never another exception, a hang or a giant allocation."""
    folder = tmp_path_factory.mktemp("flip")
    matrix = np.ones((2, 32), dtype=np.float32)
    source = write(folder / "m.gguf", {"w": (matrix, "Q8_0")}, k__n=3, k__list=["x", "y"], k__deep=[[1], [2]])
    damaged = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 9, 127, 255]))
    source.write_bytes(damaged)
    assert "\n" not in refusal(lambda: read_all(GGUFFile(source)))


def patched(whole: bytes, old: bytes, new: bytes) -> bytes:
    assert whole.count(old) == 1
    assert len(old) == len(new)
    return whole.replace(old, new)


def tensor_info(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    head = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


Q4_0, Q8_1, IQ2_XXS = 2, 9, 16
W = tensor_info(b"blk.0.w", (64, 6), Q4_0, 0)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"GGUF", b"GGML", "not a GGUF file"),
        (b"GGUF\x03\0\0\0", b"GGUF\x01\0\0\0", "version 1 is not supported"),
        (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", "big-endian"),
        (W, tensor_info(b"blk.0.w", (64, 6), 99, 0), "tensor blk.0.w has unknown quantisation type 99; supported: F32"),
        (W, tensor_info(b"blk.0.w", (64, 6), 4, 0), "unknown quantisation type 4"),
        (W, tensor_info(b"blk.0.w", (64, 6), IQ2_XXS, 0), "quantised as IQ2_XXS, which is not supported"),
        (W, tensor_info(b"blk.0.w", (64, 6), Q8_1, 0), "quantised as Q8_1, which is not supported"),
        (W, tensor_info(b"blk.0.w", (60, 6), Q4_0, 0), r"shape \[6, 60\], which Q4_0 cannot store"),
        (W, tensor_info(b"blk.0.w", (0, 6), Q4_0, 0), r"shape \[6, 0\]"),
        (W, tensor_info(b"blk.0.w", (64, 2**60), Q4_0, 0), "truncated: tensor blk.0.w ends at byte"),
        (W, tensor_info(b"blk.0.w", (64, 6), Q4_0, 2**62), "truncated: tensor blk.0.w ends at byte"),
        (W, tensor_info(b"blk.0.w", (64, 6), Q4_0, 17), "not aligned"),
        (b"blk.0.w", b"blk.0\xff\xff", "a tensor name is not valid UTF-8"),
        ("你".encode(), b"\xff\xfe\xfd", "string 2 of tokenizer.ggml.tokens is not valid UTF-8"),
        (
            b"tokens" + struct.pack("<IIQ", 9, 8, 3),
            b"tokens" + struct.pack("<IIQ", 9, 8, 2**61),
            "truncated: the header ends inside tokenizer.ggml.tokens",
        ),
        (
            b"scores" + struct.pack("<IIQ", 9, 6, 2),
            b"scores" + struct.pack("<IIQ", 9, 6, 2**61),
            "truncated: the header ends inside tokenizer.ggml.scores",
        ),
        (
            b"scores" + struct.pack("<I", 9),
            b"scores" + struct.pack("<I", 77),
            "tokenizer.ggml.scores' has unknown value type 77",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_broken_in_one_place(whole: bytes, tmp_path: Path, old: bytes, new: bytes, reason: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(patched(whole, old, new))
    with pytest.raises(ModelError, match=reason) as caught:
        GGUFFile(path)
    assert str(caught.value).startswith("bad.gguf: ")


def test_twice_the_same_name(values: np.ndarray, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"one": (values, "F32"), "two": (values, "F32")}, x__a=1, x__b=2)
    for old, new, reason in ((b"two", b"one", "tensor one appears twice"), (b"x.b", b"x.a", "'x.a' appears twice")):
        broken = tmp_path / "twice.gguf"
        broken.write_bytes(patched(path.read_bytes(), old, new))
        with pytest.raises(ModelError, match=reason):
            GGUFFile(broken)


def test_shrinks_while_it_is_read(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    file = GGUFFile(path)
    path.write_bytes(whole[:-300])
    with pytest.raises(ModelError, match="ends inside tensor"):
        read_all(file)


def test_not_there_and_not_a_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            GGUFFile(path)


# K-quants: the library can read but not write them, so random blocks are checked against the definitions in
# ggml-common.h and the scalar loops of ggml-quants.c (dequantize_row_q*_K), written out here value by value.


def half(data: bytes, at: int) -> float:
    return float(np.frombuffer(data[at : at + 2], dtype="<f2")[0])


def scales_and_mins(packed: bytes) -> list[tuple[int, int]]:
    """ggml-quants.c, get_scale_min_k4: eight pairs of 6 bits in 12 bytes."""
    pairs = []
    for j in range(8):
        if j < 4:
            pairs.append((packed[j] & 63, packed[j + 4] & 63))
        else:
            low, high = packed[j + 4] & 0xF, packed[j + 4] >> 4
            pairs.append((low | (packed[j - 4] >> 6) << 4, high | (packed[j] >> 6) << 4))
    return pairs


def q2_k(block: bytes) -> list[float]:
    scales, qs, d, dmin = block[:16], block[16:80], half(block, 80), half(block, 82)
    out = []
    for i in range(256):
        n, rest = divmod(i, 128)
        shift, place = divmod(rest, 32)
        q = qs[n * 32 + place] >> (2 * shift) & 3
        scale = scales[n * 8 + shift * 2 + place // 16]
        out.append(d * (scale & 0xF) * q - dmin * (scale >> 4))
    return out


def q3_k(block: bytes) -> list[float]:
    hmask, qs, packed, d = block[:32], block[32:96], block[96:108], half(block, 108)
    out = []
    for i in range(256):
        n, rest = divmod(i, 128)
        shift, place = divmod(rest, 32)
        j = n * 8 + shift * 2 + place // 16
        low = packed[j] & 0xF if j < 8 else packed[j - 8] >> 4
        scale = (low | (packed[8 + j % 4] >> (2 * (j // 4)) & 3) << 4) - 32
        q = qs[n * 32 + place] >> (2 * shift) & 3
        q -= 0 if hmask[place] >> (n * 4 + shift) & 1 else 4
        out.append(d * scale * q)
    return out


def q4_k(block: bytes) -> list[float]:
    d, dmin, pairs, qs = half(block, 0), half(block, 2), scales_and_mins(block[4:16]), block[16:144]
    out = []
    for i in range(256):
        group, place = divmod(i, 32)
        q = qs[group // 2 * 32 + place] >> (4 * (group % 2)) & 0xF
        out.append(d * pairs[group][0] * q - dmin * pairs[group][1])
    return out


def q5_k(block: bytes) -> list[float]:
    d, dmin, pairs = half(block, 0), half(block, 2), scales_and_mins(block[4:16])
    qh, qs = block[16:48], block[48:176]
    out = []
    for i in range(256):
        group, place = divmod(i, 32)
        q = qs[group // 2 * 32 + place] >> (4 * (group % 2)) & 0xF
        q += (qh[place] >> group & 1) << 4
        out.append(d * pairs[group][0] * q - dmin * pairs[group][1])
    return out


def q6_k(block: bytes) -> list[float]:
    ql, qh, scales, d = block[:128], block[128:192], np.frombuffer(block[192:208], np.int8), half(block, 208)
    out = []
    for i in range(256):
        n, rest = divmod(i, 128)
        quarter, place = divmod(rest, 32)
        low = ql[n * 64 + place + 32 * (quarter % 2)] >> (4 * (quarter // 2)) & 0xF
        q = (low | (qh[n * 32 + place] >> (2 * quarter) & 3) << 4) - 32
        out.append(d * int(scales[n * 8 + quarter * 2 + place // 16]) * q)
    return out


K_QUANTS = {  # name -> (definition, places of the half-precision factors)
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_as_defined(kind: str, tmp_path: Path) -> None:
    definition, factors = K_QUANTS[kind]
    quantisation = gguf.GGMLQuantizationType[kind]
    size = gguf.GGML_QUANT_SIZES[quantisation][1]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (3, 2 * size), dtype=np.uint8)
    for at in factors:  # finite factors instead of random bits
        for start in (0, size):
            pairs = rng.uniform(0.01, 1, 3).astype("<f2")
            blocks[:, start + at : start + at + 2] = pairs.view(np.uint8).reshape(3, 2)
    expected = [[*definition(bytes(row[:size])), *definition(bytes(row[size:]))] for row in blocks]
    np.testing.assert_allclose(dequantize_blocks(blocks, kind), expected, rtol=1e-5, atol=1e-4)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("w", blocks, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.testing.assert_allclose(GGUFFile(tmp_path / "k.gguf").read("w", 1, 3), expected[1:], rtol=1e-5, atol=1e-4)
