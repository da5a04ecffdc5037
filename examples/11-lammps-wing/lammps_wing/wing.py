"""What this package brings to Ridgeline. Places are imported when they are needed."""

from ridgeline.catalog import Wing

WING = Wing(
    "lammps",
    parts={
        "workloads": {"lammps": "lammps_wing.workload:LammpsWorkload"},
        "analyzers": {"lammps-log": "lammps_wing.log:ANALYZER"},
    },
    verbs={"lammps times": ("lammps_wing.log:lammps_times", "Show where the time of a LAMMPS run went.")},
    groups={"lammps": "What runs of LAMMPS show."},
    metrics="lammps_wing.log:METRICS",
    sections={"lammps": ("LAMMPS", "lammps_wing.log:section")},
)
