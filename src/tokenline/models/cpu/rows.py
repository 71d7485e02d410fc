"""What happens to one row between the matrix products: norm, rotation, activation, and quantising for the next product.

A quantised row of `k` inputs (a multiple of 32) is `k` int8 values, then for its `k / 32` groups the float32 scales,
the int32 corrections `-128 * sum(q)` and the float32 sums `scale * sum(q)`: `k + 12 * k / 32` bytes, which
`linear.py` reads. The scales are times a power of two, `factor`, that takes back what the weights were multiplied by
(`pack.py`). All functions take addresses; columns past a row's real width are zero and stay so.
"""

from tokenline.models.cpu.simd import (
    absolute,
    add,
    broadcast,
    div,
    exp2,
    fma,
    kernel,
    load_f32,
    max_lanes,
    maximum,
    mul,
    noinline,
    read_f32,
    roundeven,
    store_f32,
    store_s8,
    sub,
    sum_lanes,
    write_f32,
    write_i32,
)

LOG2_E = 1.4426950408889634
SQRT_2_PI = 0.7978845608028654  # sqrt(2 / pi)


def quantised_bytes(width: int) -> int:
    """Bytes of a quantised row of `width` inputs."""
    return width + 12 * (width // 32)


@kernel
def quantise_group(low, high, group, groups, out, factor):  # type: ignore[no-untyped-def]
    """Quantise the 32 values in two vectors as group number `group` of the row at `out`."""
    largest = max_lanes(maximum(absolute(low), absolute(high)))
    scale = largest / 127.0 * factor
    inverse = 0.0
    if largest > 1e-30:
        inverse = 127.0 / largest
    low = roundeven(mul(low, broadcast(inverse)))
    high = roundeven(mul(high, broadcast(inverse)))
    store_s8(out + group * 32, low)
    store_s8(out + group * 32 + 16, high)
    total = sum_lanes(add(low, high))  # an integer below 2**12: exact in float32
    fields = out + groups * 32 + group * 4
    write_f32(fields, scale)
    write_i32(fields + groups * 4, int(-128.0 * total))
    write_f32(fields + groups * 8, scale * total)


@kernel
def quantise_row(x, width, out, factor):  # type: ignore[no-untyped-def]
    """Quantise `width` float32 values."""
    noinline()
    groups = width // 32
    for group in range(groups):
        at = x + group * 128
        quantise_group(load_f32(at), load_f32(at + 64), group, groups, out, factor)


@kernel
def rms_scale(x, width, size, eps):  # type: ignore[no-untyped-def]
    """`1 / sqrt(mean(x**2) + eps)` of `size` values that lie in `width` (a multiple of 16) columns."""
    total = broadcast(0.0)
    for column in range(0, width, 16):
        v = load_f32(x + column * 4)
        total = fma(v, v, total)
    return 1.0 / (sum_lanes(total) / size + eps) ** 0.5


@kernel
def norm_quantise_row(x, weight, width, size, eps, out, factor):  # type: ignore[no-untyped-def]
    """RMSNorm, then quantise."""
    noinline()
    scale = broadcast(rms_scale(x, width, size, eps))
    groups = width // 32
    for group in range(groups):
        at = group * 128
        low = mul(mul(load_f32(x + at), scale), load_f32(weight + at))
        high = mul(mul(load_f32(x + at + 64), scale), load_f32(weight + at + 64))
        quantise_group(low, high, group, groups, out, factor)


@kernel
def _gate(gate, inner, up):  # type: ignore[no-untyped-def]
    """`gate * sigmoid(inner) * up` of vectors."""
    one = broadcast(1.0)
    # below -87 sigmoid is 0 in float32 anyway, above it 2**x stays finite
    power = exp2(mul(maximum(inner, broadcast(-87.0)), broadcast(-LOG2_E)))
    return mul(div(gate, add(one, power)), up)


@kernel
def swiglu(gate, up):  # type: ignore[no-untyped-def]
    """`silu(gate) * up` of two vectors."""
    return _gate(gate, gate, up)


@kernel
def geglu(gate, up):  # type: ignore[no-untyped-def]
    """`gelu(gate) * up` of two vectors, in the tanh approximation: x/2 (1 + tanh(y)) = x sigmoid(2y) with
    y = sqrt(2/pi) (x + 0.044715 x^3).
    """
    cubic = fma(mul(gate, gate), broadcast(2.0 * SQRT_2_PI * 0.044715), broadcast(2.0 * SQRT_2_PI))
    return _gate(gate, mul(gate, cubic), up)


@kernel
def swiglu_quantise_row(gate, up, width, out, factor):  # type: ignore[no-untyped-def]
    """SwiGLU of two float32 rows, quantised."""
    noinline()
    groups = width // 32
    for group in range(groups):
        at = group * 128
        low = swiglu(load_f32(gate + at), load_f32(up + at))
        high = swiglu(load_f32(gate + at + 64), load_f32(up + at + 64))
        quantise_group(low, high, group, groups, out, factor)


@kernel
def geglu_quantise_row(gate, up, width, out, factor):  # type: ignore[no-untyped-def]
    """GeGLU of two float32 rows, quantised."""
    noinline()
    groups = width // 32
    for group in range(groups):
        at = group * 128
        low = geglu(load_f32(gate + at), load_f32(up + at))
        high = geglu(load_f32(gate + at + 64), load_f32(up + at + 64))
        quantise_group(low, high, group, groups, out, factor)


@kernel
def norm_head(x, weight, head_dim, eps, out):  # type: ignore[no-untyped-def]
    """RMSNorm of one head, float32 to float32."""
    noinline()
    scale = broadcast(rms_scale(x, head_dim, head_dim, eps))
    for column in range(0, head_dim, 16):
        at = column * 4
        store_f32(out + at, mul(mul(load_f32(x + at), scale), load_f32(weight + at)))


@kernel
def norm_add_row(x, branch, weight, width, size, eps, out):  # type: ignore[no-untyped-def]
    """`x + RMSNorm(branch)`, float32 to float32, all `width` columns wide; for norms behind attention and MLP."""
    noinline()
    scale = broadcast(rms_scale(branch, width, size, eps))
    for column in range(0, width, 16):
        at = column * 4
        store_f32(out + at, add(load_f32(x + at), mul(mul(load_f32(branch + at), scale), load_f32(weight + at))))


@kernel
def scale_head(x, head_dim, factor, out):  # type: ignore[no-untyped-def]
    """One head times `factor`: what `rotate_head` is in a layer without rotary embedding; may be in place."""
    noinline()
    by = broadcast(factor)
    for column in range(0, head_dim, 16):
        store_f32(out + column * 4, mul(load_f32(x + column * 4), by))


@kernel
def rotate_head(x, cos, sin, head_dim, factor, out):  # type: ignore[no-untyped-def]
    """Rotary embedding of one head (first half with second half), times `factor`; may be in place."""
    noinline()
    half = head_dim * 2  # bytes
    by = broadcast(factor)
    column = 0
    while column + 64 <= half:
        c = load_f32(cos + column)
        s = load_f32(sin + column)
        a = load_f32(x + column)
        b = load_f32(x + half + column)
        store_f32(out + column, mul(sub(mul(a, c), mul(b, s)), by))
        store_f32(out + half + column, mul(add(mul(b, c), mul(a, s)), by))
        column += 64
    while column < half:  # half a head is not a multiple of 16: head_dim 16, 48, 80, ...
        c = read_f32(cos + column)
        s = read_f32(sin + column)
        a = read_f32(x + column)
        b = read_f32(x + half + column)
        write_f32(out + column, (a * c - b * s) * factor)
        write_f32(out + half + column, (b * c + a * s) * factor)
        column += 4
