"""Was the machine busy with something else while we measured? Judged by the first run of the baseline.

Later runs say less: the load average that they begin with is in part our own. And: did runs last long enough to time?
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.study.history import History

_ENOUGH_CPU = 0.8  # of its time a thread that computes has a core on a quiet machine; the rest is start and files
_BRIEF_S = 0.02  # a shell and the files of a run take some milliseconds of it


def _busy_text(run: Run, goal: str = "") -> str:
    """What says that other programs took cores from this run, and what to do; empty where nothing does.

    The executor leaves the load average before the run (`load_before`) and the machine's cores (`cores`) in its usage.
    A modelled run is not slowed by its neighbours.
    """
    if any(m.origin == "modelled" for m in run.measurements):
        return ""
    usage, wall_s = run.ending.usage, run.ending.duration_s
    load, cores, cpu_s = usage.get("load_before"), usage.get("cores"), usage.get("cpu_s")
    if load is None or not cores:
        return ""
    threads = run.resources.cores or 1
    waits = "ready_s" in run.metrics  # a server waits for requests and GPUs: its CPU time does not say what it lacked
    enough_s = 0.0 if waits else _ENOUGH_CPU * wall_s * threads
    starved = cpu_s is not None and cpu_s < enough_s and load + threads > cores
    if load < cores and not starved:
        return ""
    text = f"busy machine: load average {load:.1f} on {cores:.0f} cores before the first run"
    if starved:
        text += f", which got {cpu_s:.1f} s of CPU time in {wall_s:.1f} s"
    stop = "stop them or pin to free cores" if waits else "stop them, pin to free cores, or make `cpu_s` the goal"
    if goal == "cpu_s":  # they still take caches, memory bandwidth and clock
        return f"{text}; other programs also make CPU time longer: stop them or pin to free cores"
    return f"{text}; other programs slow down what is timed: {stop}"


def busy_machine(history: History, goal: str) -> str:
    """As `_busy_text`, of the first run of the baseline that passed; `goal` is the metric that is judged by."""
    first = next(iter(history.ok_runs(Stage.BASELINE)), None)
    return "" if first is None else _busy_text(first[1], goal)


def brief_runs(study: Study, history: History) -> str:
    """What says that runs are too short for their wall time; empty where that is not the goal, or they are not."""
    runs = [run for _, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH, Stage.CONFIRM)]
    return _brief_text([run.metrics["wall_s"] for run in runs]) if study.goal.metric == "wall_s" else ""


def _brief_text(walls_s: Sequence[float]) -> str:
    """The same of these wall times."""
    typical = median(walls_s) if walls_s else _BRIEF_S
    if typical >= _BRIEF_S:
        return ""
    return (
        f"a run takes {typical * 1000:.2g} ms, and starting a shell for it is some of that: let a run repeat the work "
        "for 0.1 s or more, or differences look smaller than they are"
    )
