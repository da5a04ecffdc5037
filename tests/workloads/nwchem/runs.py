"""A study of NWChem and the folder of a run, for tests without NWChem."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.judge import judge
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Outcome
from ridgeline.records.run import Cause, Ending, Run
from ridgeline.records.trial import Stage, Trial

SAMPLES = Path(__file__).parents[2] / "samples" / "nwchem"
WATER = "3\nwater\nO 0.0 0.0 0.11730\nH 0.0 0.75720 -0.46920\nH 0.0 -0.75720 -0.46920\n"
GUARD = "guards: [energy_hartree within 1e-6 of baseline]"


def write_study(folder: Path, space: str, *, options: str = "", more: str = GUARD) -> Path:
    """`space` is a YAML mapping in one line; `options` further keys of the workload, `more` of the study."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "water.xyz").write_text(WATER)
    path = folder / "study.yaml"
    text = f"""\
        version: 1
        name: water
        workload: {{kind: nwchem, molecule: water.xyz, basis: cc-pvdz{options and ", " + options}}}
        space: {space}
        goal: {{minimize: wall_s}}
        """
    path.write_text(textwrap.dedent(text) + more + "\n")
    return path


def checked(folder: Path, space: str, *, options: str = "", more: str = GUARD) -> CheckedStudy:
    return check_study(write_study(folder, space, options=options, more=more))


def first_trial(found: CheckedStudy) -> Trial:
    point = found.study.baseline
    return Trial(1, point, found.study.space.settings(point), Stage.BASELINE, "test")


def finished(
    found: CheckedStudy,
    folder: Path,
    sample: str,
    *,
    exit_code: int = 0,
    stderr: str = "",
    libraries: str = "",
    environment: str | None = None,
) -> tuple[Reading, Outcome]:
    """Read and judge the baseline's run as if NWChem had written `sample` in it."""
    job = found.workload.prepare(first_trial(found), folder)
    (folder / "stdout").write_text((SAMPLES / sample).read_text())
    (folder / "stderr").write_text(stderr)
    (folder / "libraries").write_text(libraries)
    (folder / "environment").write_text(
        "".join(f"{name}={value}\n" for name, value in job.env.items()) if environment is None else environment
    )
    ending = Ending(Cause.EXITED, exit_code=exit_code, started_s=10.0, ended_s=12.5)
    run = Run(1, 1, 1, folder, job.resources, ending)
    reading = found.workload.read(run)
    settings = json.loads((folder / "asked.json").read_text())["settings"]
    return reading, judge(run, reading, found.workload, found.study, settings, {})
