"""CPUs without this one's vector instructions, for tests that compile for them: Numba takes two variables' word."""

import llvmlite.binding

_V2 = "+64bit,+cx16,+popcnt,+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2"  # the least that NumPy runs on
_V3 = f"{_V2},+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_V4 = f"{_V3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"

# LLVM's names and features: one CPU for each form that `simd.py` has beside that for AVX-512 with bfloat16
CPUS = {
    "no AVX": ("nehalem", _V2),
    "AVX2": ("haswell", _V3),
    "AVX-512 without dot products": ("skylake-avx512", _V4),
    "AVX-512 without bfloat16": ("cascadelake", f"{_V4},+avx512vnni"),
}


def compile_for(cpu: str) -> dict[str, str]:
    """The environment of a process that compiles for one of `CPUS`."""
    name, features = CPUS[cpu]
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}


def runs_here(cpu: str) -> bool:
    """Whether this machine can run what was compiled for `cpu`."""
    here = llvmlite.binding.get_host_cpu_features()
    return all(here.get(feature[1:], False) for feature in CPUS[cpu][1].split(","))
