"""Tries a site with small real jobs: can it submit, run, start ranks, be watched, cancel; who must do what if not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import SiteError
from ridgeline.executors.base import Executor
from ridgeline.records.launch import PYXIS, contained, launch
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import Site

_LIMIT_S = 120.0
_RANKS = 2  # enough to see whether ranks find each other
_HELLO = """\
echo "$(nproc) cores"
if [ -n "${RIDGELINE_SCRATCH:-}" ]; then
  df -Pk "$RIDGELINE_SCRATCH" | awk 'END {printf "scratch %.0f GiB free\\n", $4 / 2^20}'
fi
"""


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One thing that was tried; `detail` says what was seen, or what is missing and who must do what."""

    name: str
    ok: bool
    detail: str


@dataclass
class SiteCheck:
    executor: Executor
    site: Site
    folder: Path  # must be visible on the compute nodes
    patience_s: float = 600.0

    def steps(self) -> Iterator[CheckStep]:
        """Ends at the first step without which the others cannot be tried."""
        programs = self._programs()
        yield programs
        if not programs.ok:
            return
        try:
            tickets = {name: self.executor.submit(job) for name, job in self._jobs().items()}
        except SiteError as error:
            yield CheckStep("submit", False, str(error))
            return
        ids = ", ".join(Path(ticket.split()[0]).name for ticket in tickets.values())
        yield CheckStep("submit", True, f"{len(tickets)} small jobs taken ({ids})")
        endings = self._endings({name: ticket for name, ticket in tickets.items() if name != "cancel"})
        run = self._judged("run", endings.pop("run"))
        yield run
        if not run.ok:
            self.executor.cancel(tickets["cancel"])
            return
        for name, ending in endings.items():
            yield self._judged(name, ending)
        yield self._cancelled(tickets["cancel"])

    def _programs(self) -> CheckStep:
        missing = [name for name in self.executor.programs if shutil.which(name) is None]
        if missing:
            what = f"{', '.join(missing)} not on this machine's PATH; run ridgeline where jobs are submitted from "
            return CheckStep("programs", False, f"{what}(a login node), or load the module of {self.site.batch}")
        return CheckStep("programs", True, " ".join(self.executor.programs))

    def _jobs(self) -> dict[str, Job]:
        parallel = Resources(nodes=min(2, self.site.nodes), ranks_per_node=_RANKS)
        jobs = {"run": self._job("run", _HELLO)}
        if self.site.launcher != "none":
            jobs["launcher"] = self._job("launcher", launch(self.site, parallel, "uname -n"), parallel)
        if self.site.container:
            jobs["container"] = self._job("container", contained(self.site, Resources(), "true"))
        return {**jobs, "cancel": self._job("cancel", "sleep 600")}

    def _job(self, name: str, command: str, resources: Resources = Resources()) -> Job:  # noqa: B008  frozen
        folder = self.folder / name
        folder.mkdir(parents=True)
        return Job(f"check-{name}", folder, command, resources=resources, limit_s=_LIMIT_S)

    def _endings(self, tickets: dict[str, str]) -> dict[str, Ending | None]:
        found: dict[str, Ending | None] = dict.fromkeys(tickets)
        give_up_s = time.monotonic() + self.patience_s
        open_tickets = {ticket: name for name, ticket in tickets.items()}
        while open_tickets and time.monotonic() < give_up_s:
            for ticket, ending in self.executor.poll(list(open_tickets)).items():
                found[open_tickets.pop(ticket)] = ending
            if open_tickets:
                self.executor.wait(5)
        for ticket in open_tickets:
            self.executor.cancel(ticket)
        return found

    def _judged(self, name: str, ending: Ending | None) -> CheckStep:
        if ending is None:
            waiting = "; ".join(set(self.executor.waiting.values())) or "no reason given"
            late = f"not started within {self.patience_s:.0f} s ({waiting}); the queue is full, or try another queue"
            return CheckStep(name, False, late)
        output, errors = (self._text(name, file) for file in ("stdout", "stderr"))
        if ending.cause is not Cause.EXITED or ending.exit_code != 0:
            return CheckStep(name, False, _advice(name, self.site, ending, errors))
        if name == "launcher":
            wanted, seen = _RANKS * min(2, self.site.nodes), len(output.split())
            remedy = "" if seen == wanted else "; check launcher and launcher_options"
            text = f"{seen} ranks of {wanted} on {', '.join(ending.nodes)}{remedy}"
            return CheckStep(name, seen == wanted, text)
        text = f"on {', '.join(ending.nodes) or 'a node'}; {', '.join(output.splitlines())}".rstrip("; ")
        return CheckStep(name, True, text)

    def _cancelled(self, ticket: str) -> CheckStep:
        began_s = time.monotonic()
        self.executor.cancel(ticket)
        ending = self._endings({"cancel": ticket})["cancel"]
        if ending is None or ending.cause is not Cause.CANCELLED:
            text = "no end was reported" if ending is None else f"reported as {ending.cause} {ending.reason}"
            return CheckStep("cancel", False, f"{text}; ask the operator why {ticket.split()[0]} was not cancelled")
        return CheckStep("cancel", True, f"reported after {time.monotonic() - began_s:.1f} s")

    def _text(self, name: str, file: str) -> str:
        path = self.folder / name / file
        return path.read_text(errors="replace") if path.is_file() else ""


def _advice(name: str, site: Site, ending: Ending, errors: str) -> str:
    last = errors.strip().splitlines()[-1] if errors.strip() else ""
    parts = (ending.reason, "" if last in ending.reason else last)
    said = "; ".join(part for part in parts if part) or f"exit code {ending.exit_code}"
    if name == "launcher" and ending.exit_code == 127:
        return (
            f"{said}; {site.launcher} is not on the compute nodes: name its module in `modules`, or have it installed"
        )
    if name == "launcher":
        return f"{said}; ranks do not start with launcher {site.launcher}: try another, or set launcher_options"
    if name == "container":
        runtime = "pyxis and enroot" if site.container_runtime == PYXIS else "apptainer (or singularity)"
        return f"{said}; check that {site.container} and {runtime} are on the compute nodes"
    return f"{said}; correct the site file, or show this to the operator of the cluster"
