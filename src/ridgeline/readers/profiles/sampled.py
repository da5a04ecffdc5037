"""From a list of sampled functions to a profile: what VTune and perf have in common."""

from __future__ import annotations

from ridgeline.readers.profiles.profile import Call, Function, Profile, is_mpi


def sampled_profile(
    tool: str, functions: list[Function], *, spin_share: float | None = None, wall_s: float | None = None
) -> Profile:
    """MPI's share is the sum over functions of MPI and the layers below it, or `spin_share` where that is larger.

    VTune counts MPI's busy waiting as spin time, also inside functions whose names do not tell.
    """
    ordered = sorted(functions, key=lambda f: -f.share)
    mpi = [f for f in ordered if is_mpi(f.name, f.module)]
    share = sum(f.share for f in mpi)
    total = max(share, spin_share or 0.0)
    calls = tuple(
        Call(f.name, f.seconds or 0.0, f.share / total if total else None, f.share, None, f.line)
        for f in mpi
        if not f.name.startswith("0x")  # a stripped library gives addresses only
    )
    return Profile(
        tool=tool,
        wall_s=wall_s,
        communication_share=min(1.0, total) if ordered else None,
        communication_line=mpi[0].line if mpi else 0,
        calls=calls,
        functions=tuple(ordered),
    )
