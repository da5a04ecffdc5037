"""The size of a fleet, for a terminal."""

from __future__ import annotations

from ridgeline.planner.fleet import Fleet


def fleet_text(fleet: Fleet) -> str:
    ratio = fleet.decode_per_prefill
    whole = f"{fleet.prefill_whole} + {fleet.decode_whole} = {fleet.prefill_whole + fleet.decode_whole}"
    return "\n".join(
        [
            f"prefill {fleet.prefill_nodes:8.1f} nodes",
            f"decode  {fleet.decode_nodes:8.1f} nodes" + ("" if ratio is None else f"   {ratio:.2f} per prefill node"),
            f"in all  {fleet.total_nodes:8.1f} nodes   averaged over the day; whole: {whole}",
        ]
    )
