"""Do two settings come to the same job? Then one run answers for both, and a difference between them is noise."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.records.expression import ExpressionError
from ridgeline.records.run import Resources
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.base import Workload


@dataclass(frozen=True)
class JobComparison:
    """Compares what is pasted, which costs little; where that is not all, also what a run folder would hold."""

    study: Study
    workload: Workload

    def outline(self, settings: Settings) -> str | None:
        """Different for jobs that differ in what is pasted, built or asked of the site; None where nothing can run."""
        builds = self.study.builds
        try:
            asked = _as_the_site_sees(self.study.site.batch, self.study.job.resources(settings))
            built = [builds.commands(settings), builds.environment(settings)] if builds else []
            return repr((self.workload.paste(settings), built, asked, self.study.job.loaded(settings)))
        except (ExpressionError, ValueError, RidgelineError):
            return None

    def same(self, a: Settings, b: Settings) -> bool:
        """False also where it cannot be known."""
        outline = self.outline(a)
        if outline is None or outline != self.outline(b):
            return False
        if getattr(self.workload, "pasted_whole", False):
            return True
        first = self._prepared(a)
        return first is not None and first == self._prepared(b)

    def _prepared(self, settings: Settings) -> object:
        with tempfile.TemporaryDirectory(prefix="ridgeline-check-") as folder:
            home = Path(folder) / "runs" / "1"
            try:
                job = self.workload.prepare(Trial(1, {}, settings, Stage.SEARCH, "check"), home)
            except (ExpressionError, ValueError, RidgelineError):
                return None
            plain = replace(job, name="", folder=Path(), resources=Resources())
            return plain, list(_content(home))


def _as_the_site_sees(batch: str, asked: Resources) -> Resources:
    # this machine starts the command once, whatever number of nodes and ranks is asked for
    return replace(asked, nodes=1, ranks_per_node=1) if batch == "local" else asked


def _content(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()
