"""One table over all evidence: what the twin predicts beside what was measured, and what a change made worse.

    python benchmarks/twin/gate.py EVIDENCE [--sample 4] [--only board,served] [--save FILE] [--against FILE]
    python benchmarks/twin/gate.py --only split --match "disaggregated.csv:17 ttft_s"

EVIDENCE holds served-h200.csv and public/ (serving-rows.csv, rate-driven.csv, llm-d-llama70b-h100.csv, ml-energy.csv,
per-request/, agentic/, traces/); rows of the board and of llm-d that doubt.py finds doubtful are named and left out.
The sets own, offline, colocated and split need none: they are read from `measured/` beside this file. `--match`
predicts the rows that it names, and prints each. `--sample N` takes every N-th row of each site of the board.
`--against` compares the rows that both runs have, set by set, names every figure that got worse by more than two
points, and ends with 1 if there is one.

Errors are |predicted / measured - 1|. TTFT of the board is judged on rows with a version: others carry cold kernels.
"Inside" is the share of measured values between the two bounds of the 90% interval, once as the twin states it, and
again as it would state it had the row's model, or its GPU, never been measured.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import agent_sessions
import doubt
import energy
import public_rows
import rate_driven
from accuracy import BOUNDS, HERE, LOG, SAME_ENGINE, STUDY, _calibration, _column
from board import means_ms
from llmd_rows import LlmdRow, read_llmd_rows
from public_rows import PublicRow, read_public_rows
from served_rows import served_deployment, stamped

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibration import Calibration, ValidatedSetting
from ridgeline.serving.twin.measured import METRICS, read_rows
from ridgeline.serving.twin.reach import at_once, intervals, validated, validation
from ridgeline.serving.twin.simulate import SimulationResult, simulate

# A change that makes a median, or a share that lies inside, worse by more than this is named.
WORSE = 0.02
FIGURES = ("TPOT", "TTFT", "whole", "watts", "J/token")
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """One measured value beside its prediction. `figure` is TPOT, TTFT, whole (throughput, latency, end to end), watts
    of a GPU, or J/token of an answer.

    `bounds` are the 90% intervals: as stated, and without any evidence of the row's model, and of its GPU.
    """

    set: str
    row: str
    figure: str
    engine: str
    model: str
    gpu: str
    measured: float
    predicted: float
    bounds: Mapping[str, Bounds]

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)

    def inside(self, kind: str) -> bool:
        low, high = self.bounds.get(kind) or self.bounds["stated"]
        return low <= self.measured <= high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evidence", type=Path, nargs="?", default=HERE)
    parser.add_argument("--measured", type=Path, default=HERE / "measured")
    parser.add_argument("--sample", type=int, default=1, help="every N-th row of each site of the board")
    parser.add_argument("--match", default="", help="only rows with all these words in engine, GPU, model or name")
    parser.add_argument("--most", type=int, default=1200, help="requests of one row of the board at most")
    parser.add_argument("--only", default="", help=f"sets, with commas between: {', '.join(SETS)}")
    parser.add_argument("--save", type=Path, help="keeps every point")
    parser.add_argument("--against", type=Path, help="an earlier run that was saved")
    parser.add_argument("--validated", type=Path, help="writes the list of settings that were compared")
    parser.add_argument("--farthest", type=int, default=0, help="also the so many farthest points of each figure")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(SETS)
    points = [p for name in chosen for p in SETS[name](options) if _matches(options, p.engine, p.gpu, p.model, p.row)]
    if options.save:
        options.save.write_text(json.dumps([asdict(p) for p in points]))
    for p in points if options.match else ():
        low, high = p.bounds["stated"]
        print(f"{p.set}, {p.row}, {p.figure}: measured {p.measured:,.4g}, ", end="")
        print(f"predicted {p.predicted:,.4g} ({low:,.3g} to {high:,.3g})")
    print(table(points, _set_of))
    print("\nby engine, rows of one engine for both phases that nobody calibrated\n")
    print(table([p for p in points if p.set in ("board", "rate-driven", "per-request", "served")], _cell_of))
    for figure in FIGURES if options.farthest else ():
        print(f"\nfarthest, {figure}")
        mine = sorted((p for p in points if p.figure == figure), key=lambda p: -p.error)
        for p in mine[: options.farthest]:
            print(f"  {p.set}  {p.row}  measured {p.measured:.4g}  predicted {p.predicted:.4g}")
    if options.validated:
        write_validated(options.evidence, options.validated)
    if options.against:
        left_out = [_doubtful(options.evidence, name) for name in ("board", "llm-d") if name in chosen]
        before = [p for p in load(options.against) if not any(p.row in rows for rows in left_out)]
        worse = compare(before, points)
        print("\n" + ("\n".join(worse) if worse else f"no set is worse than in {options.against} by {WORSE:.0%}"))
        sys.exit(1 if worse else 0)


def write_validated(evidence: Path, path: Path) -> None:
    """What the twin ships of the evidence: which settings its predictions were compared on, and nothing measured."""
    asked = [(row.deployment, row.concurrency) for row in _public(evidence)]
    with (evidence / "public" / "rate-driven.csv").open() as file:
        asked += [(rate_driven.stage(row)[0], 64) for row in csv.DictReader(file)]
    asked += [(deployment, 128) for _, deployment, _, _ in stamped(evidence)]
    asked += [(served_deployment(), 150)]
    asked += [(row.deployment, row.concurrency) for row in _llmd_rows(evidence)]
    for file_name, options in FILES:
        rows = read_rows(HERE / "measured" / file_name, **options)  # type: ignore[arg-type]
        asked += [(row.deployment, row.traffic.requests / 8) for row in rows if row.result == "ok"]
    loads: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for deployment, users in asked:
        each = users / max(1, (deployment.layout.decode or deployment.layout).dp)
        s = ValidatedSetting.of(deployment, each, each)
        if s.gpu == "h200" and s.release == "0.5.23":
            s = replace(s, release="0.5.15")  # our own campaigns; their file does not say
        loads[s.gpu, s.engine, s.release, s.model, s.weights, "yes" if s.apart else "no"].append(each)
    with path.open("w") as out:
        print("gpu,engine,release,model,weights,apart,fewest,most", file=out)
        for key, each_load in sorted(loads.items()):
            print(*key, f"{min(each_load):.0f}", f"{max(each_load):.0f}", sep=",", file=out)


def load(path: Path) -> list[Point]:
    return [Point(**row) for row in json.loads(path.read_text())]


def compare(before: Iterable[Point], after: Iterable[Point]) -> list[str]:
    """What got worse by more than `WORSE`, over the points that both have: one line each."""
    # a row of the board may move from one of its sets to another when more is known of it
    after = list(after)
    moved = {(p.row, p.figure): p.set for p in after if p.set.startswith("board")}
    old = {(moved.get((p.row, p.figure), p.set), p.row, p.figure): p for p in before}
    new = {(p.set, p.row, p.figure): p for p in after}
    shared = [key for key in old if key in new]
    lines = [
        f"{count} points of {name} are no longer answered"
        for name in dict.fromkeys(p.set for p in new.values())
        if (count := sum(key[0] == name and key not in new for key in old) if len(new) >= len(old) else 0)
    ]
    for name in dict.fromkeys(key[0] for key in shared):
        for figure in FIGURES:
            keys = [key for key in shared if key[0] == name and key[2] == figure]
            if not keys:
                continue
            was, now = (statistics.median(side[key].error for key in keys) for side in (old, new))
            if now > was + WORSE:
                lines.append(f"WORSE: {name}, {figure} median over {len(keys)}: {was:.1%} before, {now:.1%} now")
            was, now = (statistics.mean(side[key].inside("stated") for key in keys) for side in (old, new))
            if abs(now - 0.9) > abs(was - 0.9) + WORSE and now < was:
                lines.append(f"WORSE: {name}, {figure} inside over {len(keys)}: {was:.0%} before, {now:.0%} now")
    return lines


def table(points: Sequence[Point], group: Callable[[Point], str]) -> str:
    """Markdown: rows, then median and p90 of each figure, then what lies inside."""
    head = ["set", "rows"]
    head += [f"{figure} {what}" for figure in FIGURES for what in ("median", "p90")]
    head += [f"inside: {figure}" for figure in FIGURES]
    head += [f"{figure}, {kind}" for kind in ("unseen model", "unseen GPU") for figure in FIGURES[:2]]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[group(point)].append(point)
    for name, mine in groups.items():
        cells = [name, str(len({p.row for p in mine}))]
        by = {figure: [p for p in mine if p.figure == figure] for figure in FIGURES}
        for figure in FIGURES:
            off = sorted(p.error for p in by[figure])
            cells += [f"{statistics.median(off):.1%}", f"{off[int(0.9 * (len(off) - 1))]:.0%}"] if off else ["", ""]
        cells += [_share(by[figure], "stated") for figure in FIGURES]
        cells += [_share(by[figure], kind) for kind in ("unseen model", "unseen GPU") for figure in FIGURES[:2]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(points: Sequence[Point], kind: str) -> str:
    return f"{statistics.mean(p.inside(kind) for p in points):.0%}" if points else ""


def _set_of(point: Point) -> str:
    return point.set


def _cell_of(point: Point) -> str:
    return point.engine


def _bounds(result: SimulationResult, deployment: Deployment, name: str, scale: float) -> dict[str, Bounds]:
    """Of one figure, in the unit of what was measured, by what is taken for unseen."""
    found = {"stated": result.interval[name]}
    if not result.calibrated:
        under_way, scenes = at_once(result.summary, deployment.layout), validated()
        mine = ValidatedSetting.of(deployment, under_way, under_way)
        for kind, kept in (
            ("unseen model", [s for s in scenes if s.model != mine.model]),
            ("unseen GPU", [s for s in scenes if s.gpu != mine.gpu]),
        ):
            doubts = replace(result.doubts, validation=validation(deployment, under_way, kept))
            found[kind] = intervals(result.summary, result.last_ttft_s, Calibration(), doubts)[name]
    return {kind: (low * scale, high * scale) for kind, (low, high) in found.items()}


def _point(
    kind: str,
    row: str,
    deployment: Deployment,
    figure: str,
    measured: float,
    predicted: float,
    bounds: dict[str, Bounds],
) -> Point:
    engine, gpu, model = _names(deployment)
    return Point(kind, row, figure, engine, model, gpu, measured, predicted, bounds)


def _names(deployment: Deployment) -> tuple[str, str, str]:
    return deployment.settings.engine, deployment.cluster.gpu.name, deployment.model.name


def _matches(options: argparse.Namespace, *names: str) -> bool:
    return all(word in " ".join(names) for word in options.match.split())


def _wanted(options: argparse.Namespace, deployment: Deployment, *rows: str) -> bool:
    """Asked before a simulation: whether one of these rows of it matches."""
    return any(_matches(options, *_names(deployment), row) for row in rows)


# -- the board: rows of other people's sweeps -------------------------------------------------------------------------


@lru_cache
def _doubtful(evidence: Path, name: str) -> frozenset[str]:
    """Rows of a set that cannot be what they say they are."""
    found = {doubted.seen.row: doubted for doubted in doubt.doubts(list(doubt.SETS[name](evidence)))}
    for doubted in found.values():
        print(f"left out: {doubted}")
    return frozenset(found)


def _public(evidence: Path) -> list[PublicRow]:
    rows, _ = read_public_rows(evidence / "public" / "serving-rows.csv")
    return [row for row in rows if row.name not in _doubtful(evidence, "board")]


def _board(options: argparse.Namespace) -> Iterator[Point]:
    public_rows.MOST = options.most
    rows = [row for row in _public(options.evidence) if _wanted(options, row.deployment, row.name)]
    sites: dict[tuple[str, ...], list[PublicRow]] = defaultdict(list)
    for row in rows:
        sites[row.site].append(row)
    for mine in sites.values():
        for row in mine[:: options.sample]:
            try:
                result = simulate(row.deployment, row.traffic)
            except InputError:
                continue  # what is not answered has no error; `compare` counts it
            ttft, tpot = means_ms(result, row.concurrency)
            bounds = _mean_bounds(result, row.deployment, row.concurrency)
            for other in row.others:  # more than one recipe fits: the bounds hold whichever ran
                also = _mean_bounds(simulate(other, row.traffic), other, row.concurrency)
                bounds = {figure: _around(mine, also[figure]) for figure, mine in bounds.items()}
            kind = _kind(row)
            yield _point(kind, row.name, row.deployment, "TPOT", row.tpot_ms, tpot, bounds["TPOT"])
            if row.version:
                yield _point(kind, row.name, row.deployment, "TTFT", row.ttft_ms, ttft, bounds["TTFT"])


def _kind(row: PublicRow) -> str:
    if row.mode == "agg":
        return "board"
    if row.drafting.endswith("?"):
        return "board, split, drafting not stated"
    return "board, drafted" if row.drafting == "mtp" else "board, split"


def _mean_bounds(result: SimulationResult, deployment: Deployment, users: int) -> dict[str, dict[str, Bounds]]:
    """Of the means of TPOT and TTFT."""
    ttft, tpot = means_ms(result, users)
    itl, first = result.summary.itl_ms, result.summary.ttft_ms
    assert itl is not None
    assert first is not None
    return {
        "TPOT": _bounds(result, deployment, "itl_p50_ms", tpot / itl.p50),
        "TTFT": _bounds(result, deployment, "ttft_p50_ms", ttft / first.p50),
    }


def _around(one: Mapping[str, Bounds], other: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """The bounds that hold both."""
    return {kind: (min(one[kind][0], other[kind][0]), max(one[kind][1], other[kind][1])) for kind in one}


# -- constant rates ---------------------------------------------------------------------------------------------------


def _rates(options: argparse.Namespace) -> Iterator[Point]:
    with (options.evidence / "public" / "rate-driven.csv").open() as file:
        for row in csv.DictReader(file):
            if float(row["ttft_mean_ms"]) > 10_000:
                continue  # overloaded: latencies depend on when clients gave up
            deployment, traffic = rate_driven.stage(row)
            name = f"{row['experiment']} {row['rate_s']}/s"
            if not _wanted(options, deployment, name):
                continue
            result = simulate(deployment, traffic)
            for figure, key, column in (("TTFT", "ttft", "ttft_mean_ms"), ("whole", "e2e", "e2e_mean_ms")):
                spread = getattr(result.summary, f"{key}_ms")
                bounds = _bounds(result, deployment, f"{key}_p50_ms", spread.mean / spread.p50)
                yield _point("rate-driven", name, deployment, figure, float(row[column]), spread.mean, bounds)


# -- published runs and our own, from priors alone and calibrated -----------------------------------------------------

FILES: tuple[tuple[str, dict[str, object]], ...] = (
    ("offline.csv", {"model": "deepseek-r1"}),
    ("own-h200.csv", {}),
    ("colocated-h800.csv", {"model": "deepseek-v3", "settings": STUDY}),
    ("disaggregated.csv", {"model": "deepseek-v3", "settings": STUDY}),
)
NAMES = dict(zip((name for name, _ in FILES), ("offline", "own", "colocated", "split"), strict=True))


def _measured(file: str, options: Mapping[str, object], words: argparse.Namespace) -> Iterator[Point]:
    path = words.measured / file
    rows = read_rows(path, **options)  # type: ignore[arg-type]
    sites, uses = _column(path, "site"), _column(path, "use")
    for site in dict.fromkeys(sites):
        chosen = [(use, row) for s, use, row in zip(sites, uses, rows, strict=True) if s == site]
        fitted = chosen
        if site in SAME_ENGINE:  # calibrated on another site's rows
            other = words.measured / "colocated-h800.csv"
            both = zip(_column(other, "use"), read_rows(other, **FILES[2][1]), strict=True)  # type: ignore[arg-type]
            fitted = list(both)
        known = _calibration(site, fitted, LOG)
        for use, row in chosen:
            names = {metric: f"{row.source} {metric}" for metric in row.values}
            if row.result != "ok" or not _wanted(words, row.deployment, *names.values()):
                continue
            for kind, calibration in (("priors alone", None), ("calibrated", known)):
                if calibration and use == "fit":
                    continue
                result = simulate(row.deployment, row.traffic, calibration)
                for metric, value in row.values.items():
                    bound, unit = BOUNDS[metric]
                    figure = {"ttft": "TTFT", "itl_": "TPOT"}.get(metric[:4], "whole")
                    predicted = METRICS[metric](result) or float("nan")
                    as_ms = 1.0 if figure == "whole" else unit  # TTFT and TPOT, whatever the file states them in
                    bounds = _bounds(result, row.deployment, bound, as_ms / unit)
                    told = (value * as_ms, predicted * as_ms)
                    yield _point(f"{NAMES[file]}, {kind}", names[metric], row.deployment, figure, *told, bounds)


def _file(number: int) -> Callable[[argparse.Namespace], Iterator[Point]]:
    return lambda options: _measured(*FILES[number], options)


# -- served over HTTP -------------------------------------------------------------------------------------------------

# `ridgeline bench` held for 40 s beyond what the server can sustain (evidence/README.md)
OVERLOADED = {"load": "rate 51.5", "requests": "2060", "ttft_p95_ms": "1158", "itl_p95_ms": "60"}


def _served(options: argparse.Namespace) -> Iterator[Point]:
    deployment = served_deployment()
    with (options.evidence / "served-h200.csv").open() as file:
        rows = [*csv.DictReader(file), OVERLOADED]
    for row in rows:
        rate = float(row["load"].split()[1])
        if not _wanted(options, deployment, *(f"{rate:g}/s {name}" for name in row)):
            continue
        traffic = parse_traffic("sharegpt", requests=int(row["requests"]), rate_s=rate, seed=2025)
        result = simulate(deployment, traffic)
        for figure, name in (
            ("TTFT", "ttft_p50_ms"), ("TTFT", "ttft_p95_ms"), ("TPOT", "itl_p50_ms"), ("TPOT", "itl_p95_ms"),
        ):  # fmt: skip
            if row.get(name):
                spread = getattr(result.summary, name.split("_")[0] + "_ms")
                predicted = spread.quantile(name.split("_")[1])
                label = f"{rate:g}/s {name}"
                yield _point(
                    "served",
                    label,
                    deployment,
                    figure,
                    float(row[name]),
                    predicted,
                    _bounds(result, deployment, name, 1),
                )


# -- single requests with their time stamps ---------------------------------------------------------------------------


def _per_request(options: argparse.Namespace) -> Iterator[Point]:
    for folder, deployment, traffic, seen in stamped(options.evidence):
        kinds = itertools.product(("ttft", "tpot", "e2e"), ("mean", "p50", "p90"))
        if not _wanted(options, deployment, *(f"{folder} {key} {label}" for key, label in kinds)):
            continue
        # the stamps are the engine's own: the offline engine in one process, fed as requests come due
        result = simulate(deployment, traffic, front_end=False)
        measured = {
            "ttft": [r["first_token_ts"] - r["queued_ts"] for r in seen],
            "tpot": [(r["last_token_ts"] - r["first_token_ts"]) / (r["output_toks"] - 1) for r in seen],
            "e2e": [r["last_token_ts"] - r["queued_ts"] for r in seen],
        }
        for key, figure in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "whole")):
            spread = getattr(result.summary, f"{key}_ms")
            values = sorted(measured[key])
            wide = "itl" if key == "tpot" else key
            middle = getattr(result.summary, f"{wide}_ms").p50
            for label, value in (("mean", statistics.mean(values)), ("p50", statistics.median(values)),
                                 ("p90", values[int(0.9 * (len(values) - 1))])):  # fmt: skip
                predicted = spread.quantile(label)
                bounds = _bounds(result, deployment, f"{wide}_p50_ms", predicted / middle)
                name = f"{folder} {key} {label}"
                yield _point("per-request", name, deployment, figure, 1000 * value, predicted, bounds)


# -- Llama-70B of llm-d, together and split ----------------------------------------------------------------------------


def _llmd_rows(evidence: Path) -> list[LlmdRow]:
    rows = read_llmd_rows(evidence / "public" / "llm-d-llama70b-h100.csv")
    return [row for row in rows if row.name not in _doubtful(evidence, "llm-d")]


def _llmd(options: argparse.Namespace) -> Iterator[Point]:
    for row in _llmd_rows(options.evidence):
        if not _wanted(options, row.deployment, row.name):
            continue
        result = simulate(row.deployment, row.traffic)
        summary, kind = result.summary, f"llm-d, {'split' if row.split else 'together'}"
        assert summary.ttft_ms is not None
        bounds = _mean_bounds(result, row.deployment, row.concurrency)
        bounds["whole"] = _bounds(result, row.deployment, "total_tok_s", summary.requests_s / summary.total_tok_s)
        ttft, tpot = summary.ttft_ms.mean, means_ms(result, row.concurrency)[1]
        bounds["TTFT"] = _bounds(result, row.deployment, "ttft_p50_ms", ttft / summary.ttft_ms.p50)
        for figure, measured, predicted in (
            ("whole", row.requests_s, summary.requests_s), ("TPOT", row.tpot_ms, tpot), ("TTFT", row.ttft_ms, ttft),
        ):  # fmt: skip
            yield _point(kind, row.name, row.deployment, figure, measured, predicted, bounds[figure])


# -- agents that come back --------------------------------------------------------------------------------------------

_TAKEN_OFF_MS = 5000.0  # TTFT p50 of a load that the KV pool does not hold; its figures follow from how long it lasted


def _agents(options: argparse.Namespace) -> Iterator[Point]:
    for folder in sorted((options.evidence / "public" / "agentic").glob("*/summary.csv")):
        for run in agent_sessions.runs(folder.parent, agent_sessions.arguments().parse_args([str(folder.parent)])):
            if run.measured["ttft"] > _TAKEN_OFF_MS:
                continue
            summary = run.result.summary
            assert summary.ttft_ms is not None
            assert summary.itl_ms is not None
            for key, figure, name, middle in (("ttft", "TTFT", "ttft_p50_ms", summary.ttft_ms.p50),
                                              ("tpot", "TPOT", "itl_p50_ms", summary.itl_ms.p50)):  # fmt: skip
                bounds = _bounds(run.result, run.deployment, name, run.predicted[key] / middle)
                row = f"{folder.parent.name} {run.users} users{' tier' if run.tier else ''} {key}"
                yield _point("agents", row, run.deployment, figure, run.measured[key], run.predicted[key], bounds)


# -- watts and joules of a token --------------------------------------------------------------------------------------


def _energy(options: argparse.Namespace) -> Iterator[Point]:
    """`--sample` takes every N-th of these rows too: long closed loops of thousands of users are among them."""
    rows = energy.read_energy_rows(options.evidence / "public" / "ml-energy.csv")
    rows = [row for row in rows if _wanted(options, row.deployment, row.name)]
    for j in energy.judged(rows[:: options.sample]):
        itl = j.result.summary.itl_ms
        assert itl is not None
        bounds = {name: {"stated": j.bounds(name)} for name in ("gpu_power_w", "joules_per_output_token")}
        bounds["itl"] = _bounds(j.result, j.row.deployment, "itl_p50_ms", 1)
        for figure, measured, predicted, name in (
            ("watts", j.row.watts / j.row.gpus, j.gpu_w, "gpu_power_w"),
            ("J/token", j.row.joules, j.joules, "joules_per_output_token"),
            ("TPOT", j.row.itl_ms, itl.p50, "itl"),
        ):
            yield _point("energy", j.row.name, j.row.deployment, figure, measured, predicted, bounds[name])


SETS: dict[str, Callable[[argparse.Namespace], Iterator[Point]]] = {
    "served": _served,
    "per-request": _per_request,
    "rate-driven": _rates,
    "own": _file(1),
    "offline": _file(0),
    "colocated": _file(2),
    "split": _file(3),
    "board": _board,
    "llm-d": _llmd,
    "agents": _agents,
    "energy": _energy,
}


if __name__ == "__main__":
    main()
