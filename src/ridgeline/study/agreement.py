"""Whether a study folder's study file and its journal still describe the same campaign.

Both are plain files, and people edit plain files. Limits may be changed before a resume; the question may not, since
what was measured would then be an answer to something else. Before anything has passed it may: that is how a baseline
that fails is corrected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.records.outcome import Kind
from ridgeline.records.space import point_key
from ridgeline.records.study import Study
from ridgeline.study.history import History
from ridgeline.study.yaml_tree import YamlTree

QUESTION = ("workload", "space", "derived", "rules", "goal", "guards", "baseline", "builds", "task")


def asked(tree: YamlTree) -> dict[str, str]:
    """A short fingerprint of each part of the study file that makes up the question."""
    children = tree.root.children
    return {
        name: hashlib.sha256(json.dumps(children[name].plain(), default=str).encode()).hexdigest()[:12]
        for name in QUESTION
        if name in children
    }


def binding(history: History) -> Mapping[str, str]:
    """The fingerprints that a study file is held to; none while nothing has passed: then nothing was measured yet."""
    passed = any(run.outcome is not None and run.outcome.kind is Kind.OK for run in history.runs.values())
    return history.asked if passed or history.open_runs else {}


def require_same_question(path: Path, tree: YamlTree, before: Mapping[str, str]) -> None:
    """StoreError names the parts that were changed; `before` is empty for a campaign that has not begun."""
    now = asked(tree)
    changed = [name for name in QUESTION if before and before.get(name) != now.get(name)]
    if changed:
        raise StoreError(
            f"{path}: {', '.join(changed)} changed after the campaign began, so what was measured answers another "
            "question; undo the change, or start a new study with `ridgeline tune`"
        )


def require_consistent(study: Study, history: History) -> None:
    """StoreError where single events make sense but not together: lines were removed from the journal."""
    where, metric = history.root / "journal.jsonl", study.goal.metric
    for run in history.runs.values():
        if run.outcome is not None and run.outcome.kind is Kind.OK and metric not in run.metrics:
            raise StoreError(f"{where}: run {run.number} passed but has no {metric}; restore a copy of the journal")
    winner = None if history.verdict is None else history.verdict.details.get("winner")
    if winner is not None and point_key(winner) not in {trial.key for trial in history.trials.values()}:
        raise StoreError(f"{where}: the winner is none of the trials; restore a copy of the journal")
