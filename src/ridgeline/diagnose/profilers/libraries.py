"""Sampled time by library: a slow BLAS, kernels too old for the processor, the operating system."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable

from ridgeline.diagnose.base import Quote, RawFinding
from ridgeline.diagnose.profilers.profile import Function, Profile, sampled_profile
from ridgeline.diagnose.readers.lines import number

_GEMM = re.compile(r"^[sdcz]gemm_?$")
_REFERENCE = re.compile(r"^(?:libblas|librefblas)\.so")
# kernels that OpenBLAS falls back to on a processor it does not know: SSE3 and older, or plain C
_OLD_KERNEL = re.compile(r"^[sdcz]\w{2,30}_(PRESCOTT|CORE2|PENRYN|DUNNINGTON|NEHALEM|GENERIC|KATMAI|BANIAS)$")
_KERNEL = re.compile(r"^\[(?:kernel|k\]|guest\.kernel|unknown\.kernel)|^vmlinux")
_WIDE = re.compile(r"avx512|evex|avx2|_fma$")


def reference_blas(profile: Profile) -> list[RawFinding]:
    slow = [f for f in profile.functions if _GEMM.match(f.name) and _REFERENCE.match(f.module.rpartition("/")[2])]
    share = sum(f.share for f in slow)
    if share < 0.05:
        return []
    return [
        RawFinding(
            f"{share:.0%} of the time is in {slow[0].name.rstrip('_').upper()} of the reference BLAS, {slow[0].module}",
            (Quote(slow[0].line),),
            "Link or preload an optimised BLAS. On Debian: install libopenblas0-serial and put its folder first in "
            "LD_LIBRARY_PATH; on clusters load the OpenBLAS or MKL module. One process per core wants the serial one.",
            "warning",
            share=share,
            key="profile.reference-blas",
        )
    ]


def old_kernels(profile: Profile) -> list[RawFinding]:
    old = [f for f in profile.functions if _OLD_KERNEL.match(f.name)]
    wide = sorted((f for f in profile.functions if _WIDE.search(f.name)), key=lambda f: "avx512" not in f.name)
    share = sum(f.share for f in old)
    if share < 0.05 or not wide:
        return []
    found = _OLD_KERNEL.match(old[0].name)
    name = found.group(1) if found else ""
    coretype = "SKYLAKEX" if any("avx512" in f.name or "evex" in f.name for f in wide) else "HASWELL"
    return [
        RawFinding(
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


def libraries(profile: Profile) -> list[RawFinding]:
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
            RawFinding(
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
        RawFinding(f"by library: {named}", (Quote(line[modules[0][0]]),), advice, "note", key="profile.libraries")
    )
    return claims


# `perf report --stdio`, with or without call graphs: the own time of each function. Call chains are skipped.

# with call graphs there are two percentages, children and self: the second counts
_ROW = re.compile(
    r"^\s{1,9}(\d{1,3}\.\d\d)%(?:\s{1,9}(\d{1,3}\.\d\d)%)?\s{1,9}(\S{1,40})\s{1,60}(\S{1,400})"
    r"\s{1,80}\[[.kguH]\] (\S.{0,400})$",
    re.ASCII,
)
# of `perf report --sort dso`
_LIBRARIES_ONLY = re.compile(r"^# (?:Overhead|Children\s{1,9}Self)\s{1,20}Shared Object\s*$")
_LIBRARY = re.compile(r"^\s{1,9}(\d{1,3}\.\d\d)%(?:\s{1,9}(\d{1,3}\.\d\d)%)?\s{1,9}(\S{1,400})$", re.ASCII)


def read_perf_report(lines: Iterable[str]) -> Profile:
    """Shares are of all samples in the report, whichever process they fell in."""
    functions: list[Function] = []
    by_library = False
    for line_number, raw in enumerate(lines, 1):
        text = raw[:1200].rstrip()
        if by_library and (row := _LIBRARY.match(text)):
            name, module = row.group(3), row.group(3)
        elif row := _ROW.match(text):
            name, module = row.group(5).strip(), row.group(4)
        else:
            by_library = by_library or _LIBRARIES_ONLY.match(text) is not None
            continue
        percent = number(row.group(2) or row.group(1))
        if percent is not None and 0 <= percent <= 100:
            functions.append(Function(name, module, percent / 100, None, line_number))
    return sampled_profile("perf", functions)


# VTune's `vtune -report hotspots -format csv`, with any of its delimiters (tab unless asked otherwise).

_HEADER = re.compile(r'^"?(?:Process|Thread|Function)(?: Stack)?"?([\t,;|])')
_NUMBER = re.compile(r"^([\d.eE+-]{1,24})s?$", re.ASCII)


def read_vtune(lines: Iterable[str]) -> Profile:
    """Messages around the table are skipped; without a table the profile is empty."""
    columns: list[str] = []
    delimiter = "\t"
    rows: list[tuple[int, dict[str, str]]] = []
    for line_number, raw in enumerate(lines, 1):
        line = raw[:8000]
        header = _HEADER.match(line)
        if header and "CPU Time" in line:
            delimiter = header.group(1)
            columns = [c.removesuffix(":Self") for c in _cells(line, delimiter)]
        elif columns:
            cells = _cells(line, delimiter)
            if len(cells) >= 2:
                rows.append((line_number, dict(zip(columns, cells, strict=False))))
    timed = [(line, row, t) for line, row in rows if (t := _seconds(row.get("CPU Time"))) is not None and t >= 0]
    total = sum(t for _, _, t in timed)
    if total <= 0:
        return Profile(tool="VTune")
    functions = [
        Function(row.get("Function", row.get("Function Stack", "")), row.get("Module", ""), t / total, t, line)
        for line, row, t in timed
    ]
    spin = sum(_seconds(row.get("CPU Time:Spin Time")) or 0.0 for _, row, _ in timed)
    return sampled_profile("VTune", functions, spin_share=spin / total)


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [c.strip() for c in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _seconds(text: str | None) -> float | None:
    found = _NUMBER.match(text) if text else None
    return number(found.group(1)) if found else None
