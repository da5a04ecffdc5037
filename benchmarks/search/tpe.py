"""A peer to race against: Optuna's tree-structured Parzen estimator, which keeps away from what failed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ridgeline.records.expression import Value
from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.space import Discrete, Knob, Point, Space, point_key
from ridgeline.samplers.base import Refusal, Sampler
from ridgeline.samplers.guided.features import along, shape
from ridgeline.samplers.sequence import SequenceSampler, filling, keys, legality

Code = int | float
TRIES = 6  # proposals drawn per ask before a free neighbour of them is taken
_NEIGHBOURS = 40  # neighbours looked at before the space-filling sequence takes over
REMEMBERED = 1_000  # observations the estimator sees: the best and the latest half each


class TpeSampler(Sampler):
    """Space-filling until `startup` different points are observed or pending (default 10), then TPE.

    A setting that failed is given as a violated constraint, so that its surroundings become unlikely; a pending one
    as running, so that several trials in flight do not crowd. Optuna knows no rules and no "never twice": we draw a
    few proposals, take the first that is legal and new, else a one-knob neighbour of one, else a space-filling point.
    """

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        self._startup = int(str(options.get("startup", 10)))
        self._space, self._seed = space, seed
        self._legal = legality(space, refusal)
        self._walk = SequenceSampler(filling(space, seed, self._legal))
        self._observations: list[Observation] = []
        self._observed_keys: set[str] = set()
        self._trials: dict[int, Any] = {}  # Optuna's record of an observation, made when first needed; None if foreign
        self._feasible = False

    def tell(self, observation: Observation) -> None:
        self._observations.append(observation)
        self._observed_keys.add(point_key(observation.point))
        self._feasible = self._feasible or _passed(observation)

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        flying = keys(pending)
        filled = self._walk.first_free(self._observed_keys, flying)
        if filled is None:
            return None
        known = len(self._observed_keys | flying)
        if known < self._startup:
            return Proposal(filled, f"space-filling start, {known + 1} of {self._startup}")
        if not self._feasible:
            return Proposal(filled, "space-filling, since nothing has passed yet")
        rng = random.Random(f"tpe {self._seed} {len(self._observations)} {len(pending)}")
        drawn = []
        for point in self._draw(pending, rng.getrandbits(31)):
            if self._free(point, flying):
                return Proposal(point, f"TPE on {len(self._observations)} observations")
            drawn.append(point)
        for _ in range(_NEIGHBOURS):
            near = self._neighbour(rng.choice(drawn), rng)
            if self._free(near, flying):
                return Proposal(near, f"one knob away from what TPE on {len(self._observations)} observations proposed")
        return Proposal(filled, "space-filling, since TPE proposed nothing new that is legal")

    def _free(self, point: Point, flying: set[str]) -> bool:
        key = point_key(point)
        return key not in self._observed_keys and key not in flying and self._legal(point)

    def _draw(self, pending: Sequence[Point], seed: int) -> Iterator[dict[str, Value]]:
        """Proposals of a fresh study, so that nothing but observations, pending and seed can matter."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=_sampler(self._space, seed))
        study.add_trials([*self._known_trials(), *self._running(pending)])
        for _ in range(TRIES):
            trial = study.ask()
            yield self._walk_knobs(trial)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)  # a drawn point is not a pending one

    def _walk_knobs(self, trial: Any) -> dict[str, Value]:
        codes: dict[str, Code] = {}
        values: dict[str, Value] = dict.fromkeys(self._space.by_name)
        for knob in self._space.order:
            if knob.when is not None and not knob.when.holds(values):
                continue
            last = len(knob.values) - 1 if isinstance(knob, Discrete) else 0
            match shape(knob):
                case "index":
                    codes[knob.name] = trial.suggest_int(knob.name, 0, last)
                case "choice":
                    codes[knob.name] = trial.suggest_categorical(knob.name, tuple(range(last + 1)))
                case "share":
                    codes[knob.name] = trial.suggest_float(knob.name, 0.0, 1.0)
            values |= decode(self._space, {knob.name: codes[knob.name]})
        return decode(self._space, codes)

    def _neighbour(self, point: Mapping[str, Value], rng: random.Random) -> dict[str, Value]:
        """The point with one knob moved (to the value beside it where order means something)."""
        movable = [k for k in self._space.knobs if k.name in point and (k.count is None or k.count > 1)]
        if not movable:
            return dict(point)
        knob = rng.choice(movable)
        codes = encode(self._space, point) or {}
        if shape(knob) == "share":
            moved: Code = min(1.0, max(0.0, codes[knob.name] + rng.gauss(0, 0.1)))
        elif shape(knob) == "index":
            assert isinstance(knob, Discrete)
            moved = min(len(knob.values) - 1, max(0, int(codes[knob.name]) + rng.choice((-2, -1, 1, 2))))
        else:
            assert isinstance(knob, Discrete)
            moved = rng.randrange(len(knob.values))
        values = {**point, **decode(self._space, {knob.name: moved})}
        # a knob that comes into being by the move takes a random value
        fresh = {k.name: k.at(rng.random()) for k in self._space.knobs if k.name not in point}
        return self._space.restrict({**fresh, **values})

    def _known_trials(self) -> list[Any]:
        chosen: Sequence[int] = range(len(self._observations))
        if len(chosen) > REMEMBERED:
            latest = chosen[-REMEMBERED // 2 :]
            earlier = sorted(chosen[: -REMEMBERED // 2], key=lambda i: -_rank(self._observations[i]))
            chosen = sorted([*earlier[: REMEMBERED // 2], *latest])
        for i in chosen:
            if i not in self._trials:
                self._trials[i] = self._frozen(self._observations[i])
        return [self._trials[i] for i in chosen if self._trials[i] is not None]

    def _frozen(self, observation: Observation) -> Any:
        from optuna.trial import TrialState, create_trial

        codes = encode(self._space, observation.point)
        if codes is None:
            return None
        failed = not _passed(observation)
        return create_trial(
            state=TrialState.COMPLETE,
            value=0.0 if failed else observation.score,  # of a violated trial Optuna looks at the constraint only
            params=codes,
            distributions=self._distributions(codes),
            constraints={"failed": 1.0 if failed else 0.0},
        )

    def _running(self, pending: Sequence[Point]) -> list[Any]:
        from optuna.trial import TrialState, create_trial

        encoded = [codes for codes in (encode(self._space, point) for point in pending) if codes is not None]
        return [
            create_trial(state=TrialState.RUNNING, params=codes, distributions=self._distributions(codes))
            for codes in encoded
        ]

    def _distributions(self, codes: Mapping[str, Code]) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        result: dict[str, Any] = {}
        for name in codes:
            knob = self._space.by_name[name]
            last = len(knob.values) - 1 if isinstance(knob, Discrete) else 0
            match shape(knob):
                case "index":
                    result[name] = IntDistribution(0, last)
                case "choice":
                    result[name] = CategoricalDistribution(tuple(range(last + 1)))
                case "share":
                    result[name] = FloatDistribution(0.0, 1.0)
        return result


def _passed(observation: Observation) -> bool:
    return observation.score is not None and math.isfinite(observation.score)


def _rank(observation: Observation) -> float:
    return observation.score if observation.score is not None and math.isfinite(observation.score) else -math.inf


def _sampler(space: Space, seed: int) -> Any:
    import warnings

    import optuna

    conditional = any(knob.when is not None for knob in space.knobs)
    with warnings.catch_warnings():
        # `group` keeps knobs together that exist together; Optuna calls it experimental and says so on every call
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=0, multivariate=True, group=conditional, constant_liar=True
        )


def encode(space: Space, point: Point) -> dict[str, Code] | None:
    """Codes of the knobs that exist at the point; None for a point that is not of this space."""
    own = space.restrict(point)
    if own.keys() != point.keys() or space.missing(own):
        return None
    codes: dict[str, Code] = {}
    for name, value in own.items():
        knob = space.by_name[name]
        if not knob.contains(value):
            return None
        codes[name] = _code(knob, value)
    return codes


def decode(space: Space, codes: Mapping[str, Code]) -> dict[str, Value]:
    return {name: _value(space.by_name[name], codes[name]) for name in space.by_name if name in codes}


def _code(knob: Knob, value: Value) -> Code:
    if shape(knob) != "share":
        assert isinstance(knob, Discrete)
        same = (i for i, v in enumerate(knob.values) if v == value and isinstance(v, bool) == isinstance(value, bool))
        return next(same)
    return along(knob, value)


def _value(knob: Knob, code: Code) -> Value:
    if shape(knob) != "share":
        assert isinstance(knob, Discrete)
        return knob.values[int(code)]
    return knob.at(float(code))
