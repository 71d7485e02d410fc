"""load_model: what it is given, what it chooses, and what it says when that cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.limits import HANG_S
from tests.models.drive import Driver, random_ids
from tests.tiny import make_tiny
from tests.tiny_gguf import make_tiny_gguf
from tokenline.models import load
from tokenline.models.cpu.model import CPUModel
from tokenline.models.cpu.pack import packed_bytes
from tokenline.models.errors import ModelError
from tokenline.models.load import load_model, read_config, weight_bytes
from tokenline.models.torch import load as torch_load
from tokenline.models.torch.decoder import TorchDecoder
from tokenline.models.torch.load import pick_device, pick_dtype
from tokenline.models.weights import open_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("load"), attention_bias=True, tie_word_embeddings=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_accounts_for_its_memory(folder: Path, dtype: str) -> None:
    model = load_model(folder, device="cpu", dtype=dtype)
    values = 600 * 64 * 2 + 3 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 96)
    size = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
    # The CPU kernels' panels are padded, which shows in a model as small as this.
    padding = 1.25 if dtype == "int8" else 1.02
    assert values * size <= model.weight_bytes <= weight_bytes(model.config, dtype) * padding
    assert model.kv_bytes_per_token() == 2 * 3 * 32 * (4 if dtype == "float32" else 2)
    pool = model.new_kv_pool(10, 16)
    assert (pool.num_blocks, pool.block_size) == (10, 16)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_fewer_bits_stay_near(family: str, dtype: str, tmp_path: Path) -> None:
    folder = make_tiny(family, tmp_path / "m")
    ids = random_ids(60)
    exact = Driver(load_model(folder, device="cpu", dtype="float32")).logits(ids)
    near = Driver(load_model(folder, device="cpu", dtype=dtype)).logits(ids)
    relative = (near - exact).norm() / exact.norm()
    assert relative < {"bfloat16": 0.1, "int8": 0.2}[dtype]
    assert relative > 1e-4, "it must have been quantised"


def test_auto_on_a_cpu_is_the_compiled_kernels(folder: Path, tmp_path: Path) -> None:
    assert isinstance(load_model(folder, device="cpu"), CPUModel)
    assert isinstance(load_model(folder, device="cpu", dtype="bfloat16"), TorchDecoder)
    odd = make_tiny("llama", tmp_path / "odd", hidden_size=40, num_attention_heads=5, num_key_value_heads=5)
    assert isinstance(load_model(odd, device="cpu"), TorchDecoder), "a shape that the kernels do not know"


def test_auto_is_bfloat16_where_the_cpu_is_fast_at_it(folder: Path) -> None:
    flags = Path("/proc/cpuinfo")
    if not flags.exists():
        pytest.skip("no /proc/cpuinfo to compare with")
    able = {"avx512_bf16", "amx_bf16"} & set(flags.read_text().split())
    assert pick_dtype("auto", "cpu") == ("bfloat16" if able else "float32")


def test_device_that_is_not_there(folder: Path) -> None:
    for name, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if there:
            assert pick_device(name) == name
        else:
            with pytest.raises(ModelError, match=f"device {name} was asked for, but PyTorch .* finds none; found: cpu"):
                load_model(folder, device=name)
    assert pick_device("cpu") == "cpu"


_WITHOUT_PYTORCH = """
import sys
from pathlib import Path
from tokenline.models.errors import ModelError
from tokenline.models.load import load_model

folder, odd = map(Path, sys.argv[1:])
sys.modules["torch"] = None  # as if it were not installed
for path, arguments in ((folder, {}), (folder, {"device": "cpu"}), (folder, {"dtype": "int8"})):
    print(type(load_model(path, **arguments)).__name__)
for path, arguments in ((folder, {"dtype": "float32"}), (folder, {"device": "cuda"}), (odd, {})):
    try:
        load_model(path, **arguments)
    except ModelError as error:
        print(error)
"""


def test_without_pytorch(folder: Path, tmp_path: Path) -> None:
    odd = make_tiny("llama", tmp_path / "odd", hidden_size=40, num_attention_heads=5, num_key_value_heads=5)
    command = [sys.executable, "-c", _WITHOUT_PYTORCH, str(folder), str(odd)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S).stdout.splitlines()
    assert out[:3] == ["CPUModel"] * 3
    needs = "needs PyTorch; install it with: pip install 'tokenline[torch]'"
    assert out[3:5] == [f"dtype float32 {needs}", f"device cuda {needs}"]
    assert out[5].startswith("odd (the CPU kernels cannot compute a head_dim of 8")
    assert out[5].endswith(needs)


def test_pytorch_that_does_not_start_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file\\nmore')\n")
    code = "import sys; from pathlib import Path; from tokenline.models.load import load_model;"
    code += "load_model(Path(sys.argv[1]), dtype='float32')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "dtype float32 needs PyTorch, which does not start: libcudart.so.13: cannot open shared object file"
    )


def test_unknown_names(folder: Path) -> None:
    with pytest.raises(ModelError, match="device 'gpu' is not known; choose auto, cpu, cuda, mps"):
        load_model(folder, device="gpu")
    with pytest.raises(ModelError, match="dtype 'fp4' is not known; choose auto, float32, bfloat16, int8"):
        load_model(folder, dtype="fp4")


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    for function in (load_model, read_config):
        with pytest.raises(ModelError, match="no such file or directory"):
            function(tmp_path / "nothing")
        with pytest.raises(ModelError, match=r"neither a directory in Hugging Face layout nor a \.gguf file"):
            function(text)
        with pytest.raises(ModelError, match=r"has no config\.json"):
            function(tmp_path)


def test_too_little_memory_is_said_before_reading(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    needed = weight_bytes(read_config(folder), "float32") + 256 * 1024 * 1024
    monkeypatch.setattr(torch_load, "free_memory", lambda device: needed - 1)
    reason = r"not enough memory on cpu: as float32 it needs 256\.6 MiB, 256\.6 MiB are free \(as bfloat16 .*; as int8 "
    with pytest.raises(ModelError, match=reason):
        load_model(folder, device="cpu", dtype="float32", progress=lambda what, done, total: read.append(done))
    assert read == []
    load_model(folder, device="cpu", dtype="bfloat16")  # as the message says
    monkeypatch.setattr(torch_load, "free_memory", lambda device: needed)
    load_model(folder, device="cpu", dtype="float32")


def test_four_bits_need_the_memory_of_four_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", quant="Q4_0", hidden_size=512, intermediate_size=1024)
    model = load_model(path, device="cpu")
    needed = packed_bytes(open_checkpoint(path))
    assert needed == pytest.approx(model.weight_bytes, rel=0.02)
    assert needed < 0.65 * weight_bytes(model.config, "int8")
    monkeypatch.setattr(load, "available_memory", lambda: needed + 256 * 1024 * 1024)
    load_model(path, device="cpu")
    monkeypatch.setattr(load, "available_memory", lambda: needed + 256 * 1024 * 1024 - 1)
    with pytest.raises(ModelError, match=r"not enough memory on cpu: as int8 it needs"):
        load_model(path, device="cpu")


def test_too_large_a_pool(folder: Path) -> None:
    model = load_model(folder, device="cpu", dtype="float32")
    blocks = psutil.virtual_memory().total // model.kv_bytes_per_token() // 16 + 1
    with pytest.raises(ModelError, match=r"not enough memory: a KV pool of \d+ tokens needs .* are free"):
        model.new_kv_pool(blocks, 16)


def test_progress(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    load_model(folder, device="cpu", dtype="int8", progress=lambda what, done, total: calls.append((done, total or 0)))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1]
    assert calls[-1][1] == pytest.approx((folder / "model.safetensors").stat().st_size, rel=0.1)


@pytest.mark.parametrize("quant", ["Q4_0", "Q8_0"])
def test_quantised_gguf_computes(quant: str, tmp_path: Path) -> None:
    path = make_tiny_gguf("qwen3", tmp_path / "m.gguf", quant=quant)
    logits = Driver(load_model(path, device="cpu", dtype="float32")).logits(random_ids(40))
    exact = Driver(load_model(path.with_suffix(""), device="cpu", dtype="float32")).logits(random_ids(40))
    assert np.isfinite(logits.numpy()).all()
    assert (logits - exact).norm() / exact.norm() < {"Q8_0": 0.15, "Q4_0": 0.9}[quant]


_PEAK = r"""
import contextlib, re, sys
from pathlib import Path
from tokenline.models.load import load_model

def peak_bytes():  # of this program; ru_maxrss may be that of the process that started it
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

load_model(Path(sys.argv[2]), device="cpu", dtype=sys.argv[3])  # brings in what any loading needs: code, mostly
with contextlib.suppress(OSError):
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = peak_bytes()
model = load_model(Path(sys.argv[1]), device="cpu", dtype=sys.argv[3])
print(peak_bytes() - before, model.weight_bytes)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models that are one matrix, mostly: bfloat16 [131072, 512], and 5-bit blocks that no panel holds [32768, 512]."""
    folder = make_tiny("llama", tmp_path_factory.mktemp("large") / "m", vocab_size=131_072, hidden_size=512)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    blocks = make_tiny_gguf("llama", folder.parent / "q.gguf", quant="Q5_1", vocab_size=32_768, hidden_size=512)
    return {"safetensors": folder, "gguf": blocks}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize(
    ("form", "dtype", "copy_bytes"),
    [("safetensors", "int8", 67e6), ("safetensors", "bfloat16", 134e6), ("gguf", "int8", 67e6)],
)
def test_loading_keeps_no_second_copy(
    form: str, dtype: str, copy_bytes: float, folder: Path, large: dict[str, Path]
) -> None:
    """`copy_bytes`: of the result; where blocks are unpacked, of their float32 values."""
    command = [sys.executable, "-c", _PEAK, str(large[form]), str(folder), dtype]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    grown, weights = (int(number) for number in out.stdout.split())
    assert weights > {"safetensors": copy_bytes, "gguf": 17e6}[form]
    assert grown < weights + 0.6 * copy_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["model.layers.1.input_layernorm.weight", "model.layers.1.mlp.down_proj.weight"])
def test_values_that_are_not_finite_are_refused(name: str, value: float, dtype: str, tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[7] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"^m: tensor {name} holds values that are not finite"):
        load_model(folder, device="cpu", dtype=dtype)
