"""Made-up spaces with a known truth, so that a sampler is not judged only by the tables it was built on.

Every seed draws another space of a family: how large each effect is, which knobs interact, where the limits lie. They
resemble what people tune (tiled matrix products, stencils, compiler flags, video encoders, databases); one family is
nothing but random boxes. `cut` makes another space of a table: some values of each knob, the knobs in another order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.search.tables import Table
from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Space, point_key

Array = npt.NDArray[np.float64]
Grid = Mapping[str, Array]
Drawn = tuple[Sequence[Discrete], Callable[[Grid, np.random.Generator], tuple[Array, npt.NDArray[np.bool_]]]]
ROUGH = 0.02  # what no knob explains, in logs
KEPT = 0.7  # of the values of a knob that a cut keeps


def made(family: str, seed: int) -> Table:
    """The space of this family that this seed draws."""
    knobs, surface = FAMILIES[family]
    rng = np.random.default_rng([sorted(FAMILIES).index(family), seed])
    shape = [len(knob.values) for knob in knobs]
    places = [axis.ravel() for axis in np.indices(shape)]
    grid = {
        knob.name: np.array([float(i if isinstance(v, str) else v) for i, v in enumerate(knob.values)])[place]  # type: ignore[arg-type]
        for knob, place in zip(knobs, places, strict=True)
    }
    log_time, fails = surface(grid, rng)
    log_time = log_time + rng.normal(0.0, ROUGH, log_time.shape)
    cost = {
        point_key({knob.name: knob.values[place[row]] for knob, place in zip(knobs, places, strict=True)}): math.exp(
            float(log_time[row])
        )
        for row in np.flatnonzero(~fails)
    }
    return Table(family, Space(tuple(knobs), {}), cost, nearest=False)


def cut(table: Table, seed: int) -> Table:
    """Part of a table: of each knob with more than two values some, and the knobs in another order."""
    rng = np.random.default_rng(seed)
    knobs = [knob for knob in table.space.knobs if isinstance(knob, Discrete)]
    knobs = [_fewer(knobs[i], rng) for i in rng.permutation(len(knobs))]
    values = {knob.name: set(knob.values) for knob in knobs}
    kept: dict[str, float] = {}
    for key, cost in table.cost.items():
        point = json.loads(key)
        if all(point[name] in values[name] for name in values):
            kept[point_key({knob.name: point[knob.name] for knob in knobs})] = cost
    return Table(f"cut-{table.name}", Space(tuple(knobs), {}), kept, nearest=False)


def _fewer(knob: Discrete, rng: np.random.Generator) -> Discrete:
    count = len(knob.values)
    some = sorted(rng.choice(count, max(min(count, 2), round(KEPT * count)), replace=False))
    return Discrete(knob.name, tuple(knob.values[int(i)] for i in some), knob.ordered)


def _knob(name: str, *values: Value, ordered: bool = True) -> Discrete:
    return Discrete(name, values, ordered)


def _matrix_product(at: Grid, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    threads = at["threads_m"] * at["threads_n"]
    own_m, own_n = at["tile_m"] / at["threads_m"], at["tile_n"] / at["threads_n"]
    registers = own_m * own_n + 2 * (own_m + own_n) + 4 * at["vector"]
    shared = (at["share_a"] * at["tile_m"] + at["share_b"] * at["tile_n"]) * at["tile_k"] * 4
    room, most = rng.choice([12, 16, 24]) * 1024, rng.choice([512, 1024])
    fails = (threads > most) | (threads < 32) | (own_m < 1) | (own_n < 1) | (at["vector"] > own_m) | (shared > room)
    fails |= registers > rng.uniform(90, 250)
    resident = np.minimum(1.0, (65_536 / (threads * (registers + 20))) * threads / 2048)
    resident = np.minimum(resident, np.maximum(1, 65_536 // np.maximum(shared, 1)) * threads / 2048)
    busy = 1 / (resident * own_m * own_n) ** rng.uniform(0.3, 0.8)
    reuse = [np.where(at[f"share_{s}"] > 0, 1.0, rng.uniform(1.0, 2.5)) / at[f"tile_{t}"] for s, t in ("an", "bm")]
    memory = rng.uniform(5, 40) * (reuse[0] + reuse[1]) * (1 + np.abs(np.log2(at["vector"]) - rng.integers(0, 4)) / 4)
    steps = rng.uniform(0.5, 3) / at["tile_k"]
    return np.log(np.maximum(busy + steps, memory) + 0.3 * (busy + memory)), fails


def _stencil(at: Grid, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    threads, tile = at["block_x"] * at["block_y"], at["tile_x"] * at["tile_y"]
    halo = int(rng.integers(1, 4))
    width, height = at["block_x"] * at["tile_x"] + 2 * halo, at["block_y"] * at["tile_y"] + 2 * halo
    shared = at["share"] * width * height * 8 * at["steps"]
    fails = (threads > rng.choice([512, 1024])) | (threads < 32) | (shared > rng.choice([24, 32, 48]) * 1024)
    fails |= tile * at["unroll"] > rng.uniform(16, 48)
    traffic = width * height / (at["block_x"] * at["tile_x"] * at["block_y"] * at["tile_y"])
    traffic = np.where(at["share"] > 0, traffic / at["steps"] ** 0.8, 1 + 0.5 * halo * rng.uniform(0.5, 1.5))
    aligned = np.where(at["block_x"] % 32 == 0, 0.0, rng.uniform(0.05, 0.4))
    extra = 0.1 * at["steps"] * halo * traffic
    latency = rng.uniform(0.2, 1.0) / (tile * at["unroll"]) ** 0.5 + rng.uniform(20, 120) / threads / 4
    return np.log(traffic + extra + latency) + aligned, fails


def _flags(at: Grid, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Few matter much; some pairs matter only together; one level and one limit beside them."""
    names = [name for name in at if name.startswith("f")]
    effects = rng.normal(0, 0.03, len(names)) * rng.choice([0.1, 1.0, 4.0], len(names), p=[0.5, 0.3, 0.2])
    log_time = sum((e * at[n] for e, n in zip(effects, names, strict=True)), np.zeros_like(at["level"]))
    for _ in range(5):
        one, other = rng.choice(names, 2, replace=False)
        log_time = log_time + rng.normal(0, 0.05) * at[one] * at[other]
    log_time = log_time - np.array([0.0, *np.cumsum(rng.gamma(1, 0.08, 3))])[at["level"].astype(int)]
    best = rng.uniform(0, 5)
    return log_time + rng.uniform(0.002, 0.01) * (at["limit"] - best) ** 2 * (1 + at[names[0]]), log_time > np.inf


def _encoder(at: Grid, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    log_time = rng.uniform(0.2, 0.6) * at["preset"] + rng.uniform(0.02, 0.15) * at["references"] * (
        1 + at["preset"] / 4
    )
    log_time = log_time + np.array([0.0, *rng.normal(0.3, 0.3, 3)])[at["search"].astype(int)] * (1 + at["refine"] / 3)
    log_time = log_time + rng.uniform(0.03, 0.12) * at["refine"] * (1 + 0.3 * at["trellis"])
    threads = np.log(1 / at["threads"] ** rng.uniform(0.5, 0.9) + rng.uniform(0.005, 0.03) * at["threads"])
    log_time = log_time + threads + np.where(at["lookahead"] > 0, rng.normal(0, 0.1) * at["threads"] / 8, 0.0)
    return log_time + rng.normal(0, 0.1) * at["trellis"], log_time > np.inf


def _database(at: Grid, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    """More memory is faster until there is none left; the best number of workers depends on the rest."""
    memory = at["buffer"] + at["workers"] * at["each"] / rng.uniform(4, 16)
    fails = memory > rng.uniform(24, 60)
    misses = rng.uniform(1, 6) / (1 + at["buffer"] / rng.uniform(2, 20)) + rng.uniform(0.5, 2) / (1 + at["each"])
    service = np.array([1.0, *rng.uniform(0.6, 1.5, 2)])[at["method"].astype(int)] + misses
    waiting = rng.uniform(0.005, 0.05) * at["workers"] ** rng.uniform(1.2, 1.8) * (1 + at["method"] / 2)
    flush = rng.uniform(0.1, 1.0) * np.abs(np.log2(at["flush"]) - rng.uniform(0, 4)) / 4
    return np.log(service / at["workers"] ** 0.8 + waiting + flush), fails


def _boxes(at: Grid, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Steps at random edges of one to three knobs; some boxes fail."""
    names, log_time = list(at), np.zeros_like(at["b0"])
    for _ in range(40):
        log_time = log_time + rng.normal(0, 0.15) * _inside(at, names, rng)
    for name in names[:3]:
        span = at[name].max() - at[name].min()
        log_time = log_time + rng.uniform(0, 1.5) * ((at[name] - rng.choice(at[name])) / span) ** 2
    fails = np.zeros(log_time.shape, dtype=bool)
    while fails.mean() < 0.25:
        fails |= _inside(at, names, rng)
    return log_time, fails


def _inside(at: Grid, names: Sequence[str], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    inside = np.ones_like(at["b0"], dtype=bool)
    for name in rng.choice(names, int(rng.integers(1, 4)), replace=False):
        edge = rng.choice(np.unique(at[name])[1:])
        inside &= (at[name] >= edge) if rng.random() < 0.5 else (at[name] < edge)
    return inside


POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
FAMILIES: Mapping[str, Drawn] = {
    "matrix-product": (
        (
            *(_knob("tile_m", 16, 32, 64, 128), _knob("tile_n", 16, 32, 64, 128), _knob("tile_k", 8, 16, 32)),
            *(_knob("threads_m", *POWERS[2:6]), _knob("threads_n", *POWERS[2:6]), _knob("vector", *POWERS[:4])),
            *(_knob("share_a", 0, 1), _knob("share_b", 0, 1)),
        ),
        _matrix_product,
    ),
    "stencil": (
        (
            *(_knob("block_x", *range(16, 257, 16)), _knob("block_y", *POWERS[:6]), _knob("tile_x", 1, 2, 4, 8)),
            *(_knob("tile_y", 1, 2, 4, 8), _knob("steps", 1, 2, 4), _knob("unroll", 1, 2, 4), _knob("share", 0, 1)),
        ),
        _stencil,
    ),
    "flags": (
        (*(_knob(f"f{i}", 0, 1) for i in range(9)), _knob("level", 0, 1, 2, 3), _knob("limit", *range(6))),
        _flags,
    ),
    "encoder": (
        (
            *(_knob("preset", *range(5)), _knob("references", *range(1, 7)), _knob("refine", *range(5))),
            *(_knob("search", "dia", "hex", "umh", "esa", ordered=False), _knob("trellis", 0, 1, 2)),
            *(_knob("threads", *POWERS[:5]), _knob("lookahead", 0, 1)),
        ),
        _encoder,
    ),
    "database": (
        (
            *(_knob("buffer", *POWERS[:7]), _knob("workers", *POWERS[:7]), _knob("each", *POWERS[:6])),
            *(_knob("flush", *POWERS[:6]), _knob("method", "heap", "log", "tree", ordered=False)),
        ),
        _database,
    ),
    "boxes": (
        (
            *(_knob(f"b{i}", *range(n)) for i, n in enumerate((9, 6, 5, 4, 3, 2))),
            _knob("b6", "x", "y", "z", ordered=False),
        ),
        _boxes,
    ),
}
