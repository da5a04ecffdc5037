"""What NWChem brings to Ridgeline: the program as a workload, what its output means, and where its time goes."""

from __future__ import annotations

from ridgeline.catalog import Wing

WING = Wing(
    "nwchem",
    parts={
        "workloads": {"nwchem": "ridgeline.nwchem.workload:NwchemWorkload"},
        "analyzers": {"nwchem-out": "ridgeline.nwchem.diagnosis:ANALYZER"},
    },
    metrics="ridgeline.nwchem.output:METRICS",
    sections={"science": ("The program", "ridgeline.nwchem.figures:section")},
)
