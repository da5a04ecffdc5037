"""Sampled time by library: a slow BLAS, kernels too old for the processor, the operating system."""

from __future__ import annotations

import re

from ridgeline.diagnose.base import Claimed, Quote, knob
from ridgeline.diagnose.profilers.profile import Profile

_GEMM = re.compile(r"^[sdcz]gemm_?$")
_REFERENCE = re.compile(r"^(?:libblas|librefblas)\.so")
# kernels that OpenBLAS falls back to on a processor it does not know: SSE3 and older, or plain C
_OLD_KERNEL = re.compile(r"^[sdcz]\w{2,30}_(PRESCOTT|CORE2|PENRYN|DUNNINGTON|NEHALEM|GENERIC|KATMAI|BANIAS)$")
_KERNEL = re.compile(r"^\[(?:kernel|k\]|guest\.kernel|unknown\.kernel)|^vmlinux")
_WIDE = re.compile(r"avx512|evex|avx2|_fma$")


def reference_blas(profile: Profile) -> list[Claimed]:
    slow = [f for f in profile.functions if _GEMM.match(f.name) and _REFERENCE.match(f.module.rpartition("/")[2])]
    share = sum(f.share for f in slow)
    if share < 0.05:
        return []
    return [
        Claimed(
            f"{share:.0%} of the time is in {slow[0].name.rstrip('_').upper()} of the reference BLAS, {slow[0].module}",
            (Quote(slow[0].line),),
            "Link or preload an optimised BLAS. On Debian: install libopenblas0-serial and put its folder first in "
            "LD_LIBRARY_PATH; on clusters load the OpenBLAS or MKL module. One process per core wants the serial one.",
            "warning",
            share=share,
            knobs=knob("nwchem", "blas", "reference", ["openblas-serial"]),
            key="profile.reference-blas",
        )
    ]


def old_kernels(profile: Profile) -> list[Claimed]:
    old = [f for f in profile.functions if _OLD_KERNEL.match(f.name)]
    wide = sorted((f for f in profile.functions if _WIDE.search(f.name)), key=lambda f: "avx512" not in f.name)
    share = sum(f.share for f in old)
    if share < 0.05 or not wide:
        return []
    found = _OLD_KERNEL.match(old[0].name)
    name = found.group(1) if found else ""
    coretype = "SKYLAKEX" if any("avx512" in f.name or "evex" in f.name for f in wide) else "HASWELL"
    return [
        Claimed(
            f"{share:.0%} of the time is in OpenBLAS kernels for {name}, a processor without AVX, "
            f"while this one has it ({wide[0].name})",
            (Quote(old[0].line), Quote(wide[0].line)),
            f"OpenBLAS did not recognise the processor, as happens in virtual machines. "
            f"Set OPENBLAS_CORETYPE={coretype}, or use a newer OpenBLAS.",
            "warning",
            share=share,
            key="profile.old-kernels",
        )
    ]


def libraries(profile: Profile) -> list[Claimed]:
    """Of sampled time: too much in the kernel, or what the libraries' shares are."""
    modules = profile.modules()
    if not modules or profile.tool not in ("perf", "VTune"):
        return []
    line = {f.module: f.line for f in reversed(profile.functions)}
    claims = []
    kernel = sum(share for name, share in modules if _KERNEL.match(name))
    if kernel >= 0.15:
        first = next(name for name, _ in modules if _KERNEL.match(name))
        claims.append(
            Claimed(
                f"{kernel:.0%} of the time is in the operating system's kernel",
                (Quote(line[first]),),
                "Look for page faults (huge pages, first touch), system calls of input and output, sockets in place of "
                "shared memory or InfiniBand, and more runnable threads than cores.",
                share=kernel,
                key="profile.kernel",
            )
        )
    named = ", ".join(f"{name.rpartition('/')[2]} {share:.0%}" for name, share in modules[:5])
    advice = "The first of these is where a faster library or another build pays."
    claims.append(
        Claimed(f"by library: {named}", (Quote(line[modules[0][0]]),), advice, "note", key="profile.libraries")
    )
    return claims
