"""The file `process` of a run folder: the job's own word on who runs it, where, and under which limits.

The job writes it, not the controller, so that there is no moment in which a job runs and nobody can know.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.books import text_of_book
from ridgeline.executors import script
from ridgeline.executors.processes import Process

CLAIM_FILE = "process"


@dataclass(frozen=True, slots=True)
class Claim:
    process: Process
    boot: str
    host: str
    limit_s: float
    silence_limit_s: float | None


def claim_script(limit_s: float, silence_limit_s: float | None) -> str:
    """The lines of run.sh that write the claim. Shell builtins only: they cost no process."""
    limits = f"limit_s={limit_s:g}\\nsilence_limit_s={silence_limit_s or 0:g}\\n"
    return f"""\
if [ -n "${{{script.MARKER}:-}}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${{stat##*) }}
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\\nstart_ticks=%s\\nboot=%s\\nhost=%s\\n{limits}' $$ "${{20}}" "$boot" "$host" \\
    > {CLAIM_FILE} || exit {script.BOOKS_FAILED}
  set +C
fi
"""


def read_claim(folder: Path) -> Claim | None:
    """None where the job has not begun, or is just writing it."""
    found = script.fields_in(text_of_book(folder, CLAIM_FILE))
    try:
        return Claim(
            Process(int(found["pid"]), int(found["start_ticks"])),
            found["boot"],
            found["host"],
            float(found["limit_s"]),
            float(found["silence_limit_s"]) or None,
        )
    except (KeyError, ValueError):
        return None
