"""The task's rules, kept: before a study begins, before each job starts, and in the end as a record with its evidence.

What a run's own program says is judged with the run (`judge.py`). `compliance` is a function of the study folder alone,
so that `ridgeline study verify` makes it again and compares.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import Problem, RidgelineError, Where
from ridgeline.files import write_whole
from ridgeline.records.exhibit import TASK_RULES, TextTable
from ridgeline.records.expression import ExpressionError, show_duration
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Job
from ridgeline.records.space import Knob, Point, point_key
from ridgeline.records.study import BREAKS, Study, TaskRules
from ridgeline.records.trial import Stage
from ridgeline.stats.wording import count
from ridgeline.study.codec import Event
from ridgeline.study.folder import JOURNAL, SITES, SOURCES, STUDY
from ridgeline.study.history import History
from ridgeline.workloads.base import Workload

COMPLIANCE_FILE = "compliance.json"
_MOST_VALUES = 64  # of one knob that are tried; the job itself is looked at again before each run
_LARGEST_HASHED_BYTES = 1 << 30  # inputs above are named with their size
# where a workload says what the task fixes, the first that is there
_PLACES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "model": (("model",),),
    "seed": (("traffic", "seed"), ("seed",)),
    "prompts": (("traffic", "requests"), ("requests",), ("prompts",)),
}


# before anything runs


def task_problems(study: Study, workload: Workload) -> Iterator[Problem]:
    """Where the study contradicts the rules of its task, each at the key that does."""
    task = study.task
    if task is None:
        return
    if task.wall_s is not None and study.job.limit_s > task.wall_s:
        limit, allowed = show_duration(study.job.limit_s), show_duration(task.wall_s)
        yield Problem(("job", "limit"), f"a job may take {limit}, the task allows {allowed}; set job.limit: {allowed}")
    yield from _fixed_problems(study, task)
    nodes = study.job.resources(study.space.settings(study.baseline)).nodes
    if task.named_nodes and nodes > len(task.named_nodes):
        what = f"{count(nodes, 'node')} of a job and {len(task.named_nodes)} allowed; ask for fewer, or name more"
        yield Problem(("task", "nodes"), what)
    inherited = task.variables_in((), os.environ)
    for name in inherited if not study.site.simulated else ():
        what = f"{name} is set in your environment, and jobs inherit it; `unset {name}` and start again"
        yield Problem(("task", "forbidden_env"), what)
    yield from _forbidden_problems(study, workload, task)


def _fixed_problems(study: Study, task: TaskRules) -> Iterator[Problem]:
    for name, wanted in task.fixed().items():
        knob = study.space.by_name.get(name)
        where, said = _in_options(study.workload.options, name)
        if knob is not None:
            if others := [value for value in _values(knob) if value != wanted]:
                yield Problem(
                    ("space", name), f"allows {others[0]}, the task fixes {name} {wanted}; write {name}: {wanted}"
                )
        elif where is None:
            places = " or ".join(".".join(("workload", *place)) for place in _PLACES[name][:2])
            what = f"the task fixes {name} {wanted}, and nothing in the study sets it; add {places}, or a knob {name}"
            yield Problem(("task", name), what)
        elif said != wanted:
            yield Problem(where, f"is {said}, the task fixes {name} {wanted}; write {wanted}")


def _in_options(options: Mapping[str, object], name: str) -> tuple[Where | None, object]:
    for place in _PLACES[name]:
        value: object = options
        for key in place:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return ("workload", *place), value
    return None, None


def _values(knob: Knob) -> list[Any]:
    number = knob.count or _MOST_VALUES
    if number <= _MOST_VALUES:
        shares = [(at + 0.5) / number for at in range(number)]
    else:
        shares = [at / (_MOST_VALUES - 1) * 0.999 for at in range(_MOST_VALUES)]
    return list(dict.fromkeys(knob.at(share) for share in shares))


def _forbidden_problems(study: Study, workload: Workload, task: TaskRules) -> Iterator[Problem]:
    always = _used(study, workload, task, study.baseline)
    blamed: dict[str, tuple[str, Any]] = {}
    for knob in study.space.knobs:
        if knob.name not in study.baseline:
            continue
        for value in _values(knob):
            point = study.space.restrict({**study.baseline, knob.name: value})
            if study.space.missing(point):
                continue
            used = _used(study, workload, task, point)
            for name in dict.fromkeys((*used, *always)):
                if name not in always:
                    blamed.setdefault(name, (knob.name, value))
                elif name not in used:
                    blamed.setdefault(name, (knob.name, study.baseline[knob.name]))
    for name in dict.fromkeys((*always, *blamed)):
        rule = "task.forbidden_flags" if name.startswith("-") else "task.forbidden_env"
        if name in blamed:
            knob_name, value = blamed[name]
            what = f"{value} puts {name} into the job, which {rule} forbids; remove that value, or the knob"
            yield Problem(("space", knob_name), what)
        elif name in study.site.env:
            yield Problem(("site",), f"its env sets {name}, which {rule} forbids; remove it there")
        else:
            yield Problem(("workload",), f"every job has {name}, which {rule} forbids; remove it")


def _used(study: Study, workload: Workload, task: TaskRules, point: Point) -> list[str]:
    """Forbidden flags and variables of a setting, as a person would type it."""
    try:
        text = workload.paste(study.space.settings(point))
    except (ExpressionError, ValueError, RidgelineError):
        return []  # it cannot run at all
    return [*task.flags_in([text]), *task.variables_in([text], study.site.env)]


# before each job


def forbidden_job(study: Study, workload: Workload, job: Job, settings: Mapping[str, Any]) -> Outcome | None:
    """Why this job may not start; None: it keeps the rules."""
    task = study.task
    if task is None:
        return None
    scripts = (path.read_text(errors="replace") for path in sorted(job.folder.glob("*.sh")))
    texts = [job.command, *scripts, workload.paste(settings), *study.site.setup]
    broken = [*task.flags_in(texts), *task.variables_in(texts, (*study.site.env, *job.env))]
    if task.wall_s is not None and job.limit_s > task.wall_s:
        broken.append(f"a limit of {show_duration(job.limit_s)}")
    if not broken:
        return None
    return Outcome(Kind.REJECTED, f"{BREAKS}it has {', '.join(broken)}", remedy="remove it from the space")


def nodes_for(
    task: TaskRules, number: int, width: int, asked: tuple[str, ...], avoid: tuple[str, ...]
) -> tuple[str, ...]:
    """Where run `number` may go: where it was to go if that is allowed, else the task's nodes in turn."""
    if not task.named_nodes or (asked and all(map(task.allows_node, asked))):
        return asked
    usable = [name for name in task.named_nodes if name not in avoid]
    names = usable if len(usable) >= width else list(task.named_nodes)
    start = number * width % len(names)
    return tuple((names[start:] + names[:start])[:width])


# the record


def compliance(study: Study, root: Path, workload: Workload | None) -> dict[str, Any]:
    """What the folder shows, up to the last verdict: each rule with its evidence, and digests of what it rests on.

    `signature` is a digest of all the rest. It proves to whoever has kept it that rules, inputs, applied arguments and
    journal are those of then; it does not say who made the folder.
    """
    task = study.task
    assert task is not None
    lines = (root / JOURNAL).read_bytes().splitlines(keepends=True)
    events: list[Event] = [json.loads(line) for line in lines if line.strip() and line.endswith(b"\n")]
    ends = [at for at, event in enumerate(events) if event.get("event") == "verdict"]
    seen = ends[-1] + 1 if ends else len(events)
    history = History.replay(root, events[:seen])
    applied = _applied(study, history, workload)
    chained = b""
    for line in lines[:seen]:
        chained = hashlib.sha256(chained + line).digest()
    record: dict[str, Any] = {
        "study": study.name,
        "rules": [*_checks(study, task, history, applied)],
        "applied": applied,
        "versions": _versions(history),
        "inputs": dict(_inputs(root)),
        "journal": {"lines": seen, "digest": chained.hex()},
        "over": bool(ends),
    }
    plain: dict[str, Any] = json.loads(json.dumps(record, default=str))
    return {**plain, "signature": signature_of(plain)}


def signature_of(record: Mapping[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "signature"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_compliance(study: Study, root: Path, workload: Workload) -> None:
    if study.task is not None:
        write_whole(root / COMPLIANCE_FILE, json.dumps(compliance(study, root, workload), indent=1) + "\n")


def compliance_table(study: Study, root: Path, workload: Workload | None) -> TextTable:
    record = compliance(study, root, workload)
    rows = [tuple(row) for row in record["rules"]]
    for whose, values in record["applied"].items():
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        shown = ", ".join(f"{name} {values[name]}" for name in _TELLING if values.get(name) is not None)
        printed = f"{count(len(values), 'argument')} printed by the engine ({shown})"
        rows.append((f"applied, {whose}", "", f"{printed}; {_short(digest)}"))
    rows += [(f"version of {name}", "", text) for name, text in record["versions"].items()]
    rows += [(f"input {name}", "", _short(digest)) for name, digest in record["inputs"].items()]
    lines, digest = record["journal"]["lines"], record["journal"]["digest"]
    rows.append(("journal", "", f"{lines} lines, each hashed with the digest before it; {_short(digest)}"))
    failed = frozenset(at for at, row in enumerate(rows) if row[1] == "no")
    notes = (
        f"signature {record['signature']}" if record["over"] else "not signed: there is no verdict yet",
        f"`ridgeline study verify` makes this again from the folder and compares it with {COMPLIANCE_FILE}.",
        "The signature is a digest: kept elsewhere (hand it in with the result), it proves that rules, inputs, applied "
        "arguments and journal are still those of then.",
        "It does not prove who ran them: whoever can write the folder can sign it again.",
    )
    return TextTable(TASK_RULES, ("rule", "kept", "evidence"), tuple(rows), failed, notes=notes)


def _short(digest: str) -> str:
    return f"sha256 {digest[:16]}…" if len(digest) == 64 else digest


# Shown by name, in whatever words an engine repeats its arguments; the digest is over all of them.
_TELLING = ("model_path", "model", "tp_size", "pp_size", "dp_size", "mem_fraction_static", "random_seed", "seed")


def _checks(
    study: Study, task: TaskRules, history: History, applied: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """Each rule; yes or no, or why nobody can tell; the evidence.

    Of the runs that count: those that broke a rule are refused, and counted here.
    """
    good = [run for _, run in history.ok_runs(*Stage)]
    outcomes = [run.outcome for run in history.runs.values() if run.outcome is not None]
    refused = [outcome.reason.removeprefix(BREAKS) for outcome in outcomes if BREAKS in outcome.reason]
    runs = count(len(good), "run")
    if task.forbidden_flags:
        on = dict.fromkeys(flag for values in applied.values() for flag in task.switched_on(values))
        text = f"on: {', '.join(on)}" if on else f"in no script of {runs} that count"
        if applied and not on:
            text += "; not on in the arguments that the engine printed"
        yield f"without {', '.join(task.forbidden_flags)}", "no" if on else "yes", text
    if task.forbidden_env:
        yield f"environment without {', '.join(task.forbidden_env)}", "yes", f"in no script of {runs} that count"
    for name, wanted in task.fixed().items():
        where, _ = _in_options(study.workload.options, name)
        text = f"{'space' if where is None else '.'.join(map(str, where))} in {STUDY}"
        if name == "prompts":
            answered = {run.metrics["successful_requests"] for run in good if "successful_requests" in run.metrics}
            text += "".join(f"; answered by every run: {n:.0f}" for n in sorted(answered))
        if name == "model":
            loaded = dict.fromkeys(str(values.get("model_path", values.get("model"))) for values in applied.values())
            text += f"; the engine loaded {', '.join(loaded)}" if loaded else ""
        yield f"{name} {wanted}", "yes", text
    if task.wall_s is not None:
        longest = max((run.ending.duration_s for run in good), default=0.0)
        text = f"the longest of {runs} took {show_duration(round(longest))}"
        yield f"at most {show_duration(task.wall_s)} a job", "yes" if longest <= task.wall_s else "no", text
    if task.nodes:
        ran = dict.fromkeys(node for run in good for node in run.ending.nodes)
        kept = "yes" if all(map(task.allows_node, ran)) else "no"
        yield f"on {', '.join(task.nodes)}", kept if ran else "unknown where runs were", ", ".join(ran)
    if refused:
        yield "refused", "", f"{count(len(refused), 'run')} that broke a rule: {refused[0]}"


def _applied(study: Study, history: History, workload: Workload | None) -> dict[str, dict[str, Any]]:
    """What the engine said it applied: of the baseline, and of the setting that won."""
    winner = None if history.verdict is None else history.verdict.details.get("winner")
    points = {"the baseline": study.baseline, **({"the winner": winner} if winner else {})}
    found: dict[str, dict[str, Any]] = {}
    for whose, point in points.items():
        runs = [run for trial, run in history.ok_runs(*Stage) if trial.key == point_key(point)]
        if runs and workload is not None and (values := dict(workload.read(runs[-1]).applied)):
            found[f"{whose}, run {runs[-1].number}"] = values
    return found


def _versions(history: History) -> dict[str, str]:
    receipt: Mapping[str, Any] = history.receipts[-1] if history.receipts else {}
    found = {name: str(receipt[name]) for name in ("ridgeline", "python", "kernel", "driver") if receipt.get(name)}
    engines = dict.fromkeys(version for run in history.runs.values() if (version := run.texts.get("engine_version")))
    return found | ({"engine": ", ".join(engines)} if engines else {})


def _inputs(root: Path) -> Iterator[tuple[str, str]]:
    files = [root / STUDY, *sorted((root / SITES).rglob("*")), *sorted((root / SOURCES).rglob("*"))]
    for path in files:
        if path.is_file():
            found = f"too large to be hashed, {path.stat().st_size} bytes"
            if path.stat().st_size <= _LARGEST_HASHED_BYTES:
                with path.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            yield path.relative_to(root).as_posix(), found
