"""Vectors of 16 lanes inside Numba: types and operations that become LLVM vector code.

Numba leaves vectorising to LLVM, which gives up on sums and on possible aliasing. Kernels here say what they mean:
`f32x16` values, loaded from and stored to addresses (int64), with a fixed order of every sum, so that a result never
depends on how a loop was unrolled or which other rows were in the batch. LLVM lowers the same code to AVX-512, AVX2
or NEON; only the two dot products at the bottom have a special form where the CPU has an instruction for them.

Knows vectors, not models. The functions that take a `builder` are for the intrinsics of `linear.py` and
`attention.py`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, models, register_model

LANES = 16

# How every kernel function is compiled: free of the GIL, without Python's checks of integer division, and (half of the
# compile time) without what Python would need to call it
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
kernel = njit(**_OPTIONS)

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32 = ir.HalfType(), ir.FloatType()


class _BFloat(ir.Type):
    """`bfloat`, which llvmlite's IR builder does not know; only ever the operand of an intrinsic call."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BF16 = _BFloat()
V16F, V16I, V16H = ir.VectorType(F32, 16), ir.VectorType(I32, 16), ir.VectorType(F16, 16)
V16W, V16B, V64B, V64W = ir.VectorType(I16, 16), ir.VectorType(I8, 16), ir.VectorType(I8, 64), ir.VectorType(I16, 64)
V16BF, V32BF = ir.VectorType(BF16, 16), ir.VectorType(BF16, 32)


class VectorF32(types.Type):
    """The Numba type of 16 float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


f32x16 = VectorF32()


@register_model(VectorF32)
class _VectorF32Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, V16F)


@functools.cache
def cpu_features() -> frozenset[str]:
    """The features of the CPU that Numba compiles for, in LLVM's names; Numba leaves out some that the CPU has."""
    chosen: str | None = getattr(numba_config, "CPU_FEATURES", None)
    names = get_host_cpu_features() if chosen is None else chosen
    return frozenset(name[1:] for name in names.split(",") if name.startswith("+"))


def operation(result: Any, *params: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a Numba function of a Python function that builds its LLVM code: `build(builder, *values)`."""

    def wrap(build: Callable[..., Any]) -> Any:
        def typing(context: Any, *args: Any) -> Any:
            def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                value = build(builder, *values)
                return context.get_dummy_value() if value is None else value

            return result(*params), lower

        # Numba reads the names of the arguments, which `*args` does not give
        names = ["context", *list(inspect.signature(build).parameters)[1:]]
        typing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        typing.__name__ = build.__name__
        typing.__doc__ = build.__doc__
        return intrinsic(typing)

    return wrap


# Building blocks for intrinsics


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: Any, address: Any, kind: Any, offset: int = 0) -> Any:
    """Load a `kind` from `address + offset` bytes; any alignment."""
    if offset:
        address = builder.add(address, i64(offset))
    return builder.load(pointer(builder, address, kind), align=1)


def store(builder: Any, address: Any, value: Any, offset: int = 0) -> None:
    if offset:
        address = builder.add(address, i64(offset))
    builder.store(value, pointer(builder, address, value.type), align=1)


def splat(builder: Any, value: Any) -> Any:
    """16 lanes of one scalar."""
    kind = ir.VectorType(value.type, 16)
    undefined = ir.Constant(kind, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(undefined, value, i32(0)), undefined, ir.Constant(V16I, [0] * 16)
    )


def constant(value: float) -> ir.Constant:
    return ir.Constant(V16F, [value] * 16)


def int_constant(value: int) -> ir.Constant:
    return ir.Constant(V16I, [value] * 16)


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call an LLVM intrinsic by its full name."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [arg.type for arg in args]), name)
    return builder.call(function, list(args))


def build_prefetch(builder: Any, address: Any) -> None:
    """Ask for a line of memory to be in the second-level cache soon; any address will do."""
    place = pointer(builder, address, I8)
    call(builder, "llvm.prefetch.p0", ir.VoidType(), place, i32(0), i32(2), i32(1))


def build_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", V16F, x, y, z)


def build_max(builder: Any, x: Any, y: Any) -> Any:
    """The larger of each pair; a NaN in `x` gives `y` (one instruction on x86)."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def build_reduce(builder: Any, combine: Callable[[Any, Any, Any], Any], value: Any) -> Any:
    """Combine the 16 lanes to one, always in the same tree."""
    for half in (8, 4, 2, 1):
        lanes = ir.Constant(V16I, [(lane + half) % 16 for lane in range(16)])
        value = combine(builder, value, builder.shuffle_vector(value, value, lanes))
    return builder.extract_element(value, i32(0))


def build_sum(builder: Any, value: Any) -> Any:
    return build_reduce(builder, lambda b, x, y: b.fadd(x, y), value)


# 2**f on [-0.5, 0.5], minimax in relative error (1e-7); the last coefficient is 1 so that 2**0 is exactly 1
_EXP2 = (1.3264727e-3, 9.6715129e-3, 5.5507337e-2, 2.4022242e-1, 6.9314698e-1, 1.0)


def build_exp2(builder: Any, x: Any) -> Any:
    """2**x for x <= 127; exactly 0 for x <= -127 (the exponent field becomes 0)."""
    x = build_max(builder, x, constant(-127.0))
    whole = call(builder, "llvm.roundeven.v16f32", V16F, x)
    fraction = builder.fsub(x, whole)
    result = constant(_EXP2[0])
    for coefficient in _EXP2[1:]:
        result = build_fma(builder, result, fraction, constant(coefficient))
    shift = builder.shl(builder.fptosi(whole, V16I), int_constant(23))
    return builder.bitcast(builder.add(builder.bitcast(result, V16I), shift), V16F)


def build_to_bf16(builder: Any, value: Any) -> Any:
    """Round to bfloat16 (nearest, ties to even): 16 lanes of i16. Inputs must be finite."""
    bits = builder.bitcast(value, V16I)
    odd = builder.and_(builder.lshr(bits, int_constant(16)), int_constant(1))
    rounded = builder.add(builder.add(bits, odd), int_constant(0x7FFF))
    return builder.trunc(builder.lshr(rounded, int_constant(16)), V16W)


def build_round_bf16(builder: Any, value: Any) -> Any:
    """`build_to_bf16` in one instruction where the CPU has it; that one takes values below 2**-126 for 0."""
    if "avx512bf16" in cpu_features():
        rounded = call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", V16BF, value)
        return builder.bitcast(rounded, V16W)
    return build_to_bf16(builder, value)


def build_from_f16(builder: Any, value: Any) -> Any:
    """float16 to float32, one or 16 of them.

    x86 before F16C has no instruction for it, and Numba not the function that LLVM would call instead.
    """
    many = isinstance(value.type, ir.VectorType)
    if "sse2" not in cpu_features() or "f16c" in cpu_features():
        return builder.fpext(value, V16F if many else F32)
    bits = builder.bitcast(value, V16W) if many else splat(builder, builder.bitcast(value, I16))
    bits = builder.zext(bits, V16I)
    sign = builder.shl(builder.and_(bits, int_constant(0x8000)), int_constant(16))
    size = builder.shl(builder.and_(bits, int_constant(0x7FFF)), int_constant(13))
    number = builder.bitcast(builder.fmul(builder.bitcast(size, V16F), constant(2.0**112)), V16I)
    endless = builder.icmp_signed(">=", size, int_constant(0x7C00 << 13))  # or not a number
    number = builder.select(endless, builder.or_(number, int_constant(0x7F800000)), number)
    result = builder.bitcast(builder.or_(number, sign), V16F)
    return result if many else builder.extract_element(result, i32(0))


def build_dot_u8s8(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """`total[lane] += sum of 4 products` of the bytes in each i32 lane; exact, never saturates."""
    features = cpu_features()
    unsigned, signed = builder.bitcast(unsigned, V64B), builder.bitcast(signed, V64B)
    if "avx512vnni" in features:
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", V16I, total, unsigned, signed)
    if "avx2" in features:
        halves = [_dot_u8s8_avx2(builder, *(_half(builder, x, n) for x in (unsigned, signed))) for n in (0, 1)]
        return builder.add(total, builder.shuffle_vector(*halves, ir.Constant(V16I, list(range(16)))))
    products = builder.mul(builder.zext(unsigned, V64W), builder.sext(signed, V64W))  # at most 255 * 128: fits 16 bits
    for start in range(4):
        lanes = ir.Constant(V16I, [start + 4 * lane for lane in range(16)])
        total = builder.add(total, builder.sext(builder.shuffle_vector(products, products, lanes), V16I))
    return total


def _half(builder: Any, value: Any, number: int) -> Any:
    """32 of 64 bytes."""
    lanes = ir.Constant(ir.VectorType(I32, 32), [32 * number + k for k in range(32)])
    return builder.shuffle_vector(value, value, lanes)


def _dot_u8s8_avx2(builder: Any, unsigned: Any, signed: Any) -> Any:
    """8 sums of 4 products. `pmaddubsw` saturates at 16 bits, so the top bit of the unsigned bytes goes by itself."""
    bytes32, words16, lanes8 = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    ones = ir.Constant(words16, [1] * 16)
    sums = []
    for mask in (0x7F, 0x80):
        part = builder.and_(unsigned, ir.Constant(bytes32, [mask] * 32))
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", words16, part, signed)
        sums.append(call(builder, "llvm.x86.avx2.pmadd.wd", lanes8, pairs, ones))
    return builder.add(*sums)


def build_dot_bf16(builder: Any, total: Any, x: Any, y: Any) -> Any:
    """`total[lane] += sum of 2 products` of the bfloat16 pairs in each i32 lane."""
    if "avx512bf16" in cpu_features():
        x, y = builder.bitcast(x, V32BF), builder.bitcast(y, V32BF)
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", V16F, total, x, y)
    for part in ("even", "odd"):
        if part == "even":
            u, v = (builder.shl(value, int_constant(16)) for value in (x, y))
        else:
            u, v = (builder.and_(value, int_constant(-65536)) for value in (x, y))
        total = build_fma(builder, builder.bitcast(u, V16F), builder.bitcast(v, V16F), total)
    return total


# Operations for Numba code. Addresses are int64; a vector lies in 64 bytes (f32) or 32 bytes (bf16) from there.


@operation(f32x16, types.int64)
def load_f32(builder: Any, address: Any) -> Any:
    return load(builder, address, V16F)


@operation(types.void, types.int64, f32x16)
def store_f32(builder: Any, address: Any, value: Any) -> None:
    store(builder, address, value)


@operation(types.void, types.int64, f32x16)
def store_bf16(builder: Any, address: Any, value: Any) -> None:
    store(builder, address, build_to_bf16(builder, value))


@operation(types.void, types.int64, f32x16)
def store_s8(builder: Any, address: Any, value: Any) -> None:
    """Round to the nearest integer and store 16 bytes; values must lie within -127 to 127."""
    whole = builder.fptosi(call(builder, "llvm.roundeven.v16f32", V16F, value), V16I)
    store(builder, address, builder.trunc(whole, V16B))


@operation(f32x16, f32x16)
def roundeven(builder: Any, value: Any) -> Any:
    return call(builder, "llvm.roundeven.v16f32", V16F, value)


@operation(f32x16, types.float32)
def broadcast(builder: Any, value: Any) -> Any:
    return splat(builder, value)


@operation(f32x16, f32x16, f32x16)
def add(builder: Any, x: Any, y: Any) -> Any:
    return builder.fadd(x, y)


@operation(f32x16, f32x16, f32x16)
def sub(builder: Any, x: Any, y: Any) -> Any:
    return builder.fsub(x, y)


@operation(f32x16, f32x16, f32x16)
def mul(builder: Any, x: Any, y: Any) -> Any:
    return builder.fmul(x, y)


@operation(f32x16, f32x16, f32x16)
def div(builder: Any, x: Any, y: Any) -> Any:
    return builder.fdiv(x, y)


@operation(f32x16, f32x16, f32x16, f32x16)
def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return build_fma(builder, x, y, z)


@operation(f32x16, f32x16, f32x16)
def maximum(builder: Any, x: Any, y: Any) -> Any:
    return build_max(builder, x, y)


@operation(f32x16, f32x16)
def absolute(builder: Any, x: Any) -> Any:
    return call(builder, "llvm.fabs.v16f32", V16F, x)


@operation(f32x16, f32x16)
def exp2(builder: Any, x: Any) -> Any:
    return build_exp2(builder, x)


@operation(f32x16, f32x16)
def finite(builder: Any, x: Any) -> Any:
    """NaN becomes 0, and infinities the largest bfloat16: what one sequence breaks must not reach another."""
    x = builder.select(builder.fcmp_unordered("uno", x, x), constant(0.0), x)
    limit = 3.3895313892515355e38
    x = builder.select(builder.fcmp_ordered(">", x, constant(limit)), constant(limit), x)
    return builder.select(builder.fcmp_ordered("<", x, constant(-limit)), constant(-limit), x)


@operation(types.float32, f32x16)
def sum_lanes(builder: Any, x: Any) -> Any:
    return build_sum(builder, x)


@operation(types.float32, f32x16)
def max_lanes(builder: Any, x: Any) -> Any:
    return build_reduce(builder, build_max, x)


@intrinsic
def call_kernel(context, address, *args):  # type: ignore[no-untyped-def]
    """Call a kernel that was compiled on its own: a C function of int64 arguments at `address`."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address = values[0]
        arguments = [builder.extract_value(values[1], k) for k in range(len(signature.args[1]))]
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(arguments))
        builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.StarArgTuple([types.int64] * len(args))), lower


@operation(types.void)
def noinline(builder: Any) -> None:
    """Compile the function that calls this once, not into each of its callers: a third of the compile time."""
    builder.function.attributes.add("noinline")


def for_rows(make: Callable[[int], Any]) -> Any:
    """The kernel `f(rows, *arguments)` of the intrinsics `make(1)` to `make(4)`, each made for so many rows."""
    one, two, three, four = (make(rows) for rows in (1, 2, 3, 4))

    @kernel
    def for_some_rows(rows, *arguments):  # type: ignore[no-untyped-def]
        if rows == 4:
            four(*arguments)
        elif rows == 3:
            three(*arguments)
        elif rows == 2:
            two(*arguments)
        else:
            one(*arguments)

    return for_some_rows


# Memory by address, and what threads need to work together


@operation(types.float32, types.int64)
def read_f32(builder: Any, address: Any) -> Any:
    return load(builder, address, F32)


@operation(types.void, types.int64, types.float32)
def write_f32(builder: Any, address: Any, value: Any) -> None:
    store(builder, address, value)


@operation(types.void, types.int64, types.int32)
def write_i32(builder: Any, address: Any, value: Any) -> None:
    store(builder, address, value)


@operation(types.void, types.int64, types.int64)
def write_i64(builder: Any, address: Any, value: Any) -> None:
    store(builder, address, value)


@operation(types.void, types.int64, types.int64, f32x16)
def store_bf16_pairs(builder: Any, address: Any, stride: Any, value: Any) -> None:
    """Store 16 values as 8 pairs of bfloat16, `stride` bytes from pair to pair."""
    pairs = builder.bitcast(build_to_bf16(builder, value), ir.VectorType(I32, 8))
    for pair in range(8):
        store(builder, builder.add(address, builder.mul(stride, i64(pair))), builder.extract_element(pairs, i32(pair)))


@operation(types.void, types.int64, f32x16)
def store_bf16_strided(builder: Any, address: Any, value: Any) -> None:
    """Store 16 values as bfloat16, 4 bytes from one to the next."""
    rounded = build_to_bf16(builder, value)
    for lane in range(16):
        store(builder, address, builder.extract_element(rounded, i32(lane)), lane * 4)


@operation(types.int64, types.int64)
def read_i64(builder: Any, address: Any) -> Any:
    return load(builder, address, I64)


@operation(types.int32, types.int64)
def read_i32(builder: Any, address: Any) -> Any:
    return load(builder, address, I32)


@operation(types.int32, types.int64)
def read_u8(builder: Any, address: Any) -> Any:
    return builder.zext(load(builder, address, I8), I32)


@operation(types.float32, types.int64)
def read_f16(builder: Any, address: Any) -> Any:
    return build_from_f16(builder, load(builder, address, F16))


@operation(types.int64, types.int64, types.int64)
def atomic_add(builder: Any, address: Any, value: Any) -> Any:
    """Add to an aligned int64; returns what was there before."""
    return builder.atomic_rmw("add", pointer(builder, address, I64), value, "seq_cst")


@operation(types.boolean, types.int64, types.int64, types.int64)
def compare_and_set(builder: Any, address: Any, expected: Any, value: Any) -> Any:
    """Set an aligned int64 to `value` if it still is `expected`; whether it was."""
    pair = builder.cmpxchg(pointer(builder, address, I64), expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(pair, 1)


@operation(types.int64, types.int64)
def atomic_load(builder: Any, address: Any) -> Any:
    return builder.load_atomic(pointer(builder, address, I64), "seq_cst", 8)


@operation(types.void)
def spin_pause(builder: Any) -> None:
    """Tell the CPU that this is a waiting loop."""
    if "sse2" in cpu_features():
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())
