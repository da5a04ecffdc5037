"""Many campaigns under faults drawn from a seed, on a real one-machine Slurm and on the PBS stand-in of the tests.

    python benchmarks/disturbed_campaign.py [--campaigns 12] [--faults 6] [--seed 1] [--on slurm pbs] [--forgetful]

Each campaign has 19 runs when nobody disturbs it, and gets `--faults` faults at runs drawn from the seed; what fell to
one is run again. At its end the journal is held against the batch system's own books: jobs that are in one and not in
the other, runs without a result, runs with two jobs or two starts, node-seconds. Its answer (winner, interval, every
figure of the verdict) is held against that of a calm campaign of the same study.
Where Debian's slurmdbd and mariadb-server are installed Slurm has accounting, and its `sacct` is compared as well.
`--forgetful`: Slurm forgets a job seconds after its end (MinJobAge=2) instead of five minutes.
Needs root, and Debian's slurm-wlm and munge for Slurm. About 40 s a campaign on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.disturbed import (
    HOLDS,
    NEEDS_CONTROLLER,
    ON_PBS,
    ON_SLURM,
    RUNS_OF_A_CALM_ONE,
    SLOTS,
    Audit,
    BatchSystem,
    PbsSystem,
    SlurmSystem,
    Stage,
    audit,
)
from tests.slurm_cluster import missing, missing_for_accounting, slurm_cluster

NAP_S = 1.2  # books are kept in whole seconds


@dataclass(frozen=True)
class Played:
    """One disturbed campaign: its faults and what the audit found; `stopped` is why there is no audit."""

    faults: tuple[tuple[int, str], ...]
    found: Audit | None
    same_answer: bool
    stopped: str = ""


def drawn(rng: random.Random, kinds: tuple[str, ...], deck: list[str], count: int) -> tuple[tuple[int, str], ...]:
    """Faults at distinct runs. `deck` deals the kinds, so that each comes about as often as the others."""
    while len(deck) < count:
        deck.extend(rng.sample(kinds, len(kinds)))
    dealt = [deck.pop(0) for _ in range(count)]
    while True:
        rng.shuffle(dealt)
        runs = sorted(rng.sample(range(2, RUNS_OF_A_CALM_ONE + 1), count))
        faults = tuple(zip(runs, dealt, strict=True))
        pairs = [(one, other) for one in faults for other in faults if one[0] < other[0] <= one[0] + SLOTS]
        # a controller that is held in the submission of a later run cannot do what an earlier fault waits for
        if not any(one[1] in NEEDS_CONTROLLER and other[1] in HOLDS for one, other in pairs):
            return faults


def campaigns(system: BatchSystem, folder: Path, chosen: argparse.Namespace) -> Iterator[Played]:
    kinds = ON_SLURM if isinstance(system, SlurmSystem) else ON_PBS
    rng, deck = random.Random(f"{chosen.seed} {system.name}"), list[str]()
    calm = Stage(folder / "calm", system, nap_s=NAP_S)
    calm.play()
    expected = audit(calm)
    for number in range(1, chosen.campaigns + 1):
        faults = drawn(rng, kinds, deck, chosen.faults)
        stage, began = Stage(folder / f"{number:03d}", system, faults, NAP_S), time.monotonic()
        try:
            stage.play()
            found = audit(stage)
            played = Played(faults, found, found.answer == expected.answer)
        except AssertionError as error:
            played = Played(faults, None, False, str(error))
        told = f"{played.found.runs} runs" if played.found else played.stopped
        print(f"{system.name} {number}: {told}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        yield played


def show(system: BatchSystem, played: list[Played]) -> None:
    """One row a kind of fault; what a campaign came to counts for each kind that hit it."""
    rows: dict[str, list[Played]] = defaultdict(list)
    for each in played:
        for _, kind in each.faults:
            rows[kind].append(each)
    print(f"\n{system.name}: {len(played)} campaigns, {sum(p.found.runs for p in played if p.found)} runs\n")
    print("| fault | times | lost | twice | left behind | verify | ledger | same answer |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, hit in [*sorted(rows.items()), ("all", played)]:
        times = sum(len(p.faults) for p in played) if kind == "all" else len(hit)
        unique = list({id(p): p for p in hit}.values())
        audits = [p.found for p in unique if p.found]
        lost, twice, left = (sum(len(getattr(a, name)) for a in audits) for name in ("lost", "twice", "left"))
        lost += sum(p.found is None for p in unique)
        error = max((a.ledger_error for a in audits), default=0.0)
        same, holds = sum(p.same_answer for p in unique), sum(a.verified for a in audits)
        of = len(unique)
        print(f"| {kind} | {times} | {lost} | {twice} | {left} | {holds} of {of} | {error:.2%} | {same} of {of} |")
    audits = [p.found for p in played if p.found]
    ledger, books = (sum(getattr(a, name) for a in audits) for name in ("ledger_s", "books_s"))
    print(f"\nnode-seconds: ledger {ledger:.0f}, {system.name}'s own list of jobs {books:.0f}", end="")
    accounts = [a.accounting_s for a in audits if a.accounting_s is not None]
    print(f", sacct {sum(accounts):.0f}" if accounts else "")
    for each in played:
        for problem in (each.stopped, *((*each.found.lost, *each.found.twice, *each.found.left) if each.found else ())):
            if problem:
                print(f"- {problem}")


@contextlib.contextmanager
def the_system(name: str, folder: Path, forgetful: bool) -> Iterator[BatchSystem]:
    if name == "pbs":
        state = folder / "pbs-state"
        state.mkdir()
        yield PbsSystem(state)
        return
    without = missing_for_accounting()
    print(f"Slurm without accounting: {without}" if without else "Slurm with accounting", file=sys.stderr)
    age_s = 2 if forgetful else 300
    with slurm_cluster(min_job_age_s=age_s, kill_wait_s=30, accounting=not without) as cluster:
        yield SlurmSystem(cluster)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=12)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", nargs="+", choices=("slurm", "pbs"), default=("slurm", "pbs"))
    parser.add_argument("--forgetful", action="store_true")
    chosen = parser.parse_args()
    if "slurm" in chosen.on and (reason := missing()):
        sys.exit(f"no Slurm here: {reason}")
    good = True
    for name in chosen.on:
        with tempfile.TemporaryDirectory(prefix="disturbed-") as temporary:
            folder = Path(temporary)
            with the_system(name, folder, chosen.forgetful) as system:
                played: list[Played] = []
                with contextlib.suppress(KeyboardInterrupt):  # what was played until then is shown
                    for each in campaigns(system, folder, chosen):
                        played.append(each)
                show(system, played)
        good &= all(p.found and p.same_answer and p.found.clean for p in played)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
