"""What a trial is predicted to measure, stated before it runs with a range that the trials so far say is wide enough.

Worked out from the journal alone: each trial's own line keeps what was predicted of it, so a resumed campaign states
the same. The sampler's choice does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, pstdev

from ridgeline.campaign.scores import Normalisation
from ridgeline.campaign.verdict import goal_text
from ridgeline.records.observation import BEST_SO_FAR, Proposal
from ridgeline.records.study import Study
from ridgeline.records.trial import PredictedRange, Stage
from ridgeline.stats.nodes import corrected
from ridgeline.stats.stated_range import LEVEL, widening
from ridgeline.stats.wording import metric_text
from ridgeline.study.history import History

_LARGEST_LOG = 700.0  # beyond, a float ends


def stated(proposal: Proposal, study: Study, history: History, through: Normalisation | None) -> PredictedRange | None:
    """The prediction in the goal's unit, as the next run would measure it; None where nothing was predicted.

    The sampler predicts what the setting would measure on usual nodes, at the baseline's mean level: `through` is how
    it observed. Where the run will land nobody knows, so what nodes did to the runs so far is part of the range.
    """
    found = proposal.predicted
    if found is None:
        return None
    value, spread = study.goal.score(found.score), found.spread
    if through is not None and found.in_logs:
        value = through.as_measured(value, len(history.runs) + len(history.open_runs) + 1)
        shift, apart = _of_nodes(study, history, through)
        value, spread = value * math.exp(shift), math.hypot(spread, apart)
    reach = widening(_errors(study, history)) * spread
    if found.in_logs:
        factor = math.exp(min(reach, _LARGEST_LOG - abs(math.log(abs(value)))))
        low, high = sorted((value / factor, value * factor))
    else:
        low, high = value - reach, value + reach
    return PredictedRange(value, low, high, spread, found.in_logs)


def with_range(
    proposal: Proposal, predicted: PredictedRange | None, stage: Stage, study: Study, history: History
) -> str:
    """'predicted 19,900 tok/s (90%: 18,100 to 21,400); best chance to beat 19,700 tok/s per node-hour; ...'"""
    if predicted is None or proposal.predicted is None:
        return proposal.why
    text = goal_text(study, history)
    of_what = " for a whole run" if stage is Stage.SHORT else ""
    ends = f"{metric_text(predicted.low)} to {metric_text(predicted.high)}"
    to_beat = proposal.predicted.to_beat
    why = proposal.why if to_beat is None else proposal.why.replace(BEST_SO_FAR, text.value(study.goal.score(to_beat)))
    return f"predicted {text.value(predicted.value)}{of_what} ({LEVEL:.0%}: {ends}); {why}"


def _of_nodes(study: Study, history: History, through: Normalisation) -> tuple[float, float]:
    """What the nodes that runs landed on did to them, in logs: the mean, and the standard deviation around it."""
    if not through.factors:
        return 0.0, 0.0
    runs = [run for _, run in history.ok_runs(Stage.BASELINE, Stage.SENTINEL, Stage.SEARCH)]
    moves = [-math.log(corrected(1.0, run.ending.nodes, through.factors)) for run in runs]
    return (fmean(moves), pstdev(moves)) if moves else (0.0, 0.0)


def _errors(study: Study, history: History) -> Iterator[float]:
    """How far off the predictions were of which a whole run has measured what became of them."""
    for trial, run in history.ok_runs(Stage.SEARCH):
        if trial.predicted is not None and study.goal.metric in run.metrics:
            yield trial.predicted.error(run.metrics[study.goal.metric])
