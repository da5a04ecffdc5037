"""The public board: every prediction of the gate beside its measurement, as a table to read by machine and as a page.

    python benchmarks/twin/gate.py EVIDENCE --save now.json
    python benchmarks/twin/board_page.py now.json [--peer EVIDENCE/public/serving-rows.csv]

writes board.csv beside this file. `--peer` asks aiconfigurator-core about rows where one engine does both phases, in
an environment of its own; without it, its earlier answers are kept. `scripts/docs-site` makes the page of board.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.report.drawing.draw import draw, standing_alone
from ridgeline.report.figures.shapes import BEST, OTHER, Axis, PlotFigure, PlotPoint, PlotSeries

BOARD = Path(__file__).with_name("board.csv")
COLUMNS = ("set", "row", "figure", "engine", "model", "gpu", "measured", "predicted", "low", "high", "aiconfigurator")
FIGURES = ("TPOT", "TTFT")
WORST = 20  # rows of each figure that are named
# sources that state no licence: judged with in the gate, not shipped
NOT_SHIPPED = ("rate-driven", "energy")
# sets whose rows lie in measured/
SHIPPED = ("own", "offline", "colocated", "split")
SOURCES = (
    ("board, split, drafted", "InferenceX sweeps as ai-dynamo/aiconfigurator 0.12 publishes them", "Apache-2.0"),
    ("agents", "SemiAnalysisAI/InferenceX, experimental/multiturn", "Apache-2.0"),
    ("llm-d", "llm-d/llm-d-prism", "Apache-2.0"),
    ("per-request", "LLMServingSim", "MIT"),
    ("all others", "our own runs and field reports", ""),
)


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One figure of one measured row: what was measured, what the twin says with its 90% interval, what a peer says.

    TPOT and TTFT are in ms; "whole" is a throughput or a latency from end to end, in the unit of its source.
    """

    set: str
    row: str
    figure: str
    engine: str
    model: str
    gpu: str
    measured: float
    predicted: float
    low: float
    high: float
    peer: float | None = None

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def calibrated(self) -> bool:
        return self.set.endswith(", calibrated")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("saved", type=Path, help="what gate.py --save wrote")
    parser.add_argument("--peer", type=Path, metavar="ROWS", help="ask aiconfigurator-core about these rows")
    options = parser.parse_args()
    peer = answers_of_peer(options.peer) if options.peer else earlier_answers(BOARD)
    points = json.loads(options.saved.read_text())
    rows = [_row(point, peer) for point in points if point["set"] not in NOT_SHIPPED]
    write(rows, BOARD)
    print(f"{len(rows)} figures, {sum(row.peer is not None for row in rows)} of them a peer's too: {BOARD}")


def _row(point: dict[str, object], peer: dict[tuple[str, str], float]) -> BoardRow:
    low, high = point["bounds"]["stated"]  # type: ignore[index]
    values = (point["measured"], point["predicted"], low, high)
    key = (str(point["row"]), str(point["figure"]))
    mine = peer.get(key) if point["set"] == "board" else None
    return BoardRow(*(str(point[name]) for name in COLUMNS[:6]), *map(float, values), mine)  # type: ignore[arg-type]


def answers_of_peer(rows_csv: Path) -> dict[tuple[str, str], float]:
    # imported here: they need what only this folder's scripts have on their path
    from board import ask_peer
    from peer import FOLDER
    from public_rows import read_public_rows

    scores = ask_peer(read_public_rows(rows_csv)[0], FOLDER)
    return {(s.row.name, figure): ms for s in scores for figure, ms in (("TTFT", s.ttft_ms), ("TPOT", s.tpot_ms))}


def earlier_answers(path: Path) -> dict[tuple[str, str], float]:
    known = read(path) if path.exists() else []
    return {(row.row, row.figure): row.peer for row in known if row.peer is not None}


def write(rows: Iterable[BoardRow], path: Path) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for row in rows:
            values = (row.measured, row.predicted, row.low, row.high, row.peer)
            told = ["" if value is None else f"{value:.4g}" for value in values]
            table.writerow([row.set, row.row, row.figure, row.engine, row.model, row.gpu, *told])


def read(path: Path) -> list[BoardRow]:
    with path.open() as file:
        table = csv.reader(file)
        next(table)
        return [
            BoardRow(*cells[:6], *map(float, cells[6:10]), float(cells[10]) if cells[10] else None)  # type: ignore[arg-type]
            for cells in table
        ]


# -- the page ---------------------------------------------------------------------------------------------------------


def page(rows: Sequence[BoardRow]) -> tuple[str, dict[str, str]]:
    """Markdown, and the drawings it shows by file name."""
    untouched = [row for row in rows if not row.calibrated]
    drawings = {f"board-{figure.lower()}.svg": drawing(untouched, figure) for figure in FIGURES}
    by_figure = {figure: [row for row in untouched if row.figure == figure] for figure in FIGURES}
    parts = [
        "# Board: predicted beside measured",
        f"{len(rows):,} figures of {len({(row.set, row.row) for row in rows}):,} measured rows, other people's and our "
        "own, with the twin's prediction and its 90% interval. Nothing is calibrated unless its set says so. What to "
        "make of it, and where not to trust it, is on [the page about accuracy](accuracy.md); the same figures "
        "to read by machine: [board.csv](../benchmarks/twin/board.csv).",
        "Medians of |predicted / measured - 1|, the worst first; bias: by how much the median is too high or too low; "
        "inside: the share of measurements that the interval holds. aiconfigurator 0.12 is asked about rows where one "
        "engine does both phases, and compared on those that it answers.",
        "To predict all rows of a line again: "
        '`python benchmarks/twin/gate.py "$EVIDENCE" --match "vllm h200 llama-8b"`, with the words of that line. '
        "EVIDENCE is a folder of the rows as their sources publish them, laid out as the head of gate.py says; the "
        "repository does not ship it. Rows of own, offline, colocated and split are in `benchmarks/twin/measured`, and "
        "their commands run in a checkout as they stand.",
        *(part for figure, mine in by_figure.items() for part in _cells(mine, figure)),
        "## Worst rows",
        *(part for figure, mine in by_figure.items() for part in _worst(mine, figure)),
        "## By set",
        _table(
            ("set", "rows", *(f"{figure}: median, p90, inside" for figure in (*FIGURES, "whole"))),
            [_set(name, mine) for name, mine in _grouped(rows, lambda row: (row.set,))],
        ),
        "## Where the rows are from",
        _table(("sets", "source", "licence"), SOURCES),
        f"The gate also holds rows whose sources state no licence ({', '.join(NOT_SHIPPED)}); they are not published "
        "here.",
        "## Make it again",
        "    python benchmarks/twin/gate.py $EVIDENCE --save now.json\n"
        "    python benchmarks/twin/board_page.py now.json --peer $EVIDENCE/public/serving-rows.csv\n"
        "    scripts/docs-site",
    ]
    return "\n\n".join(parts) + "\n", drawings


def _cells(rows: Sequence[BoardRow], figure: str) -> Iterator[str]:
    """One line for each engine, GPU and model, the largest median error first; then the drawing."""
    groups = sorted(_grouped(rows, lambda row: (row.engine, row.gpu, row.model)), key=lambda group: -_median(group[1]))
    yield f"## {figure} by engine, GPU and model"
    head = ("what", "rows", "twin, median (bias)", "inside 90%", "both answer: rows", "twin", "aiconfigurator")
    yield _table(head, [_cell(key, mine) for key, mine in groups])
    yield f"![{figure}, measured and predicted](board-{figure.lower()}.svg)"
    yield "Triangles: the twin; circles: aiconfigurator; on the line lies what is right."


def _cell(key: tuple[str, ...], mine: Sequence[BoardRow]) -> list[str]:
    both = [row for row in mine if row.peer is not None]
    bias = statistics.median(row.ratio for row in mine) - 1
    cells = [f"`{' '.join(key)}`", str(len(mine)), f"{_median(mine):.0%} ({bias:+.0%})", _inside(mine)]
    peers = [str(len(both)), f"{_median(both):.0%}", f"{_median(both, _peer_error):.0%}"] if both else ["", "", ""]
    return [*cells, *peers]


def _worst(rows: Sequence[BoardRow], figure: str) -> Iterator[str]:
    yield f"### {figure}"
    farthest = sorted(rows, key=lambda row: -max(row.ratio, 1 / row.ratio))[:WORST]
    yield _table(
        ("measured, ms", "twin", "90%", "inside", "aiconfigurator", "set", "to predict it again"),
        [
            [
                f"{row.measured:,.4g}", f"{row.predicted:,.4g}", f"{row.low:,.3g} to {row.high:,.3g}",
                "yes" if row.inside else "no", f"{row.peer:,.4g}" if row.peer else "", row.set, f"`{again(row)}`",
            ]
            for row in farthest
        ],
    )  # fmt: skip


def again(row: BoardRow) -> str:
    """The command that prints this row's prediction."""
    kind = row.set.partition(",")[0]
    evidence = "" if kind in SHIPPED else '"$EVIDENCE" '
    return f'python benchmarks/twin/gate.py {evidence}--only {kind} --match "{row.row}"'


def _set(key: tuple[str, ...], mine: Sequence[BoardRow]) -> list[str]:
    cells = [key[0], str(len({row.row for row in mine}))]
    for figure in (*FIGURES, "whole"):
        own = sorted(row.error for row in mine if row.figure == figure)
        held = _inside([row for row in mine if row.figure == figure])
        cells.append(f"{statistics.median(own):.1%}, {own[int(0.9 * (len(own) - 1))]:.0%}, {held}" if own else "")
    return cells


def _grouped(
    rows: Iterable[BoardRow], key: Callable[[BoardRow], tuple[str, ...]]
) -> Iterable[tuple[tuple[str, ...], list[BoardRow]]]:
    groups: dict[tuple[str, ...], list[BoardRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups.items()


def _error(row: BoardRow) -> float:
    return row.error


def _peer_error(row: BoardRow) -> float:
    return abs((row.peer or 0.0) / row.measured - 1)


def _median(rows: Sequence[BoardRow], error: Callable[[BoardRow], float] = _error) -> float:
    return statistics.median(map(error, rows))


def _inside(rows: Sequence[BoardRow]) -> str:
    return f"{statistics.mean(row.inside for row in rows):.0%}" if rows else ""


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def drawing(rows: Sequence[BoardRow], figure: str) -> str:
    """Measured along, predicted up, both logarithmic: what is right lies on the line."""
    mine = [row for row in rows if row.figure == figure]
    ends = [min(row.measured for row in mine), max(row.measured for row in mine)]
    twin, peer = (
        tuple(PlotPoint(row.measured, value) for row in mine if (value := of(row)) is not None)
        for of in (lambda row: row.predicted, lambda row: row.peer)
    )
    series = [PlotSeries("aiconfigurator", peer, OTHER)] if peer else []
    series += [
        PlotSeries("twin", twin, BEST),
        PlotSeries("as measured", tuple(PlotPoint(x, x) for x in ends), OTHER, "line"),
    ]
    title = f"{figure}, predicted against measured"
    shown = PlotFigure(
        f"board-{figure.lower()}", title, f"{len(mine)} figures", Axis(f"{figure} measured, ms", log=True),
        Axis(f"{figure} predicted, ms", log=True), tuple(series),
    )  # fmt: skip
    return standing_alone(draw(shown))


if __name__ == "__main__":
    main()
