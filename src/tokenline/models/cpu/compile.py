"""Compiling the step, once a machine: Numba keeps the machine code on disk."""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from numba import cfunc, njit, typeof, types

from tokenline.models.cpu.attention import attend_span
from tokenline.models.cpu.draw import compile_draw
from tokenline.models.cpu.linear import panel_product
from tokenline.models.cpu.simd import cpu_features
from tokenline.models.cpu.step import forward_step
from tokenline.models.cpu.step_args import Memory, Shape, StepArgs, Weights


class Kernels(NamedTuple):
    """The compiled code. The two heavy kernels stand apart, so that LLVM works on each of them once."""

    forward: Any  # forward(thread, threads, shape, weights, args, memory): called by every thread of the pool
    panel_product: Any
    attend_span: Any


def compile_kernels() -> Kernels:
    """Compile what is not in Numba's cache on disk; all of it, so that no request waits for that."""
    compile_draw()
    # Numba's cache looks at this file and at what a function closes over: so each mentions the stamp of all the files
    stamp = _stamp()

    @cfunc(types.void(*[types.int64] * 11), cache=True, error_model="numpy")
    def product(kind, a, a_stride, rows, groups, panel, bias, out, out_stride, add, prefetch):  # type: ignore[no-untyped-def]
        if len(stamp) > 0:
            panel_product(kind, a, a_stride, rows, groups, panel, bias, out, out_stride, add, prefetch)

    @cfunc(types.void(*[types.int64] * 14), cache=True, error_model="numpy")
    def attend(queries, rows, group, position, window, span, table, keys, values, block_stride, block_size, head_dim,
               state, scratch):  # type: ignore[no-untyped-def]  # fmt: skip
        if len(stamp) > 0:
            attend_span(queries, rows, group, position, window, span, table, keys, values, block_stride, block_size,
                        head_dim, state, scratch)  # fmt: skip

    @njit(nogil=True, error_model="numpy", cache=True)
    def forward(thread, threads, shape, weights, args, memory):  # type: ignore[no-untyped-def]
        if len(stamp) > 0:
            forward_step(thread, threads, shape, weights, args, memory)

    forward.compile((types.int64, types.int64, *map(_numba_type, (Shape, Weights, StepArgs, Memory))))
    return Kernels(forward, product, attend)


def _numba_type(cls: Any) -> types.Type:
    """The type of such a tuple, whose fields are all int or float."""
    return typeof(cls(*(kind(0) for kind in cls.__annotations__.values())))


def _stamp() -> str:
    """Names the version of everything that the kernels are compiled from: their files, and the compiler."""
    digest = hashlib.sha256()
    for name in ("simd", "linear", "rows", "attention", "step_args", "claims", "heads", "step"):
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    digest.update(f"{version('numba')} {version('llvmlite')} {sorted(cpu_features())}".encode())
    return digest.hexdigest()
