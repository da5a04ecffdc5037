"""A finished campaign goes on: from where it was, alike after a kill, and with a verdict that says so."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.confirmation import error_share, extension_text, level_after
from ridgeline.campaign.extension import parse_extension, require_extendable, require_room
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.cli.main import main
from ridgeline.errors import InputError
from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Settings, point_key
from ridgeline.records.study import Budget, JobLimits
from ridgeline.records.trial import Stage
from ridgeline.stats.compare import confirm
from ridgeline.stats.verdict import Block, Confirmation, Verdict
from ridgeline.study.codec import Extension, KeptVerdict, event_of
from ridgeline.study.history import History, read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, rate, study


def finished(root: Path, extension: Extension | None = None, function: Any = rate) -> tuple[KeptVerdict, History]:
    """A campaign to its verdict, or one that has a verdict and is extended."""
    run = campaign(root, study(root), function)
    if extension is not None:
        run.record(event_of(extension))
    verdict = run.run()
    run.journal.close()
    return verdict, run.history


def points(history: History, *stages: Stage) -> list[dict[str, Any]]:
    return [dict(trial.point) for trial in history.trials.values() if trial.stage in stages]


def test_more_trials_go_on_with_the_search_and_confirm_anew(tmp_path: Path) -> None:
    _, before = finished(tmp_path)
    verdict, after = finished(tmp_path, Extension(trials=5))
    assert after.count(Stage.SEARCH) == before.count(Stage.SEARCH) + 5 == 17
    assert points(after, Stage.SEARCH)[:12] == points(before, Stage.SEARCH), "nothing is run twice"
    new = [trial for number, trial in after.trials.items() if number > len(before.trials)]
    assert new[0].stage is Stage.SENTINEL, "first whether the machine is still the same"
    fresh = [trial for trial in new if trial.stage is Stage.CONFIRM]
    assert len(fresh) == 3 * 2 * 3
    assert after.count(Stage.CONFIRM) == before.count(Stage.CONFIRM) + len(fresh), "and the earlier blocks still count"
    assert {trial.block for trial in fresh} == {3, 4, 5}, "blocks are numbered on"
    assert "extended by 5 trials after a verdict" in verdict.headline


def test_earlier_blocks_of_a_setting_stay_in_its_comparison(tmp_path: Path) -> None:
    first, before = finished(tmp_path)
    second, after = finished(tmp_path, Extension(trials=5))
    keys = {point_key(point) for point in before.candidates or ()} & {point_key(p) for p in after.candidates or ()}
    blocks = {c.candidate: c.blocks for c in second.comparisons}  # type: ignore[attr-defined]
    assert keys and all(blocks[key] == 6 for key in keys), "three before, three after"
    left = {c.candidate for c in first.comparisons} - keys  # type: ignore[attr-defined]
    assert all(blocks[key] == 3 for key in left), "a setting that is no longer among the best keeps what it showed"
    assert not any("want of a good run" in n for c in second.comparisons for n in c.notes)  # type: ignore[attr-defined]


def test_an_extension_without_room_leaves_the_answer_it_found(tmp_path: Path) -> None:
    asked = study(tmp_path, budget=Budget(trials=12, node_hours=1.0))
    run = campaign(tmp_path, asked)
    first = run.run()
    run.journal.close()
    spent = study(tmp_path, budget=Budget(trials=12, node_hours=run.history.node_hours))
    more = campaign(tmp_path, spent)
    more.record(event_of(Extension(trials=5)))
    second = more.run()
    assert len(more.history.runs) == len(run.history.runs), "there was no room for a single run"
    assert first.conclusion == second.conclusion == "confirmed"
    assert first.comparisons == second.comparisons, "nobody looked again: the interval is the same"  # type: ignore[attr-defined]
    assert "extended by 5 trials after a verdict, of which none ran" in second.headline
    answer = SearchQuestion().answer(spent, more.history)
    assert answer.confirmed and "of which none ran" in answer.headline
    more.journal.close()
    blocks = campaign(tmp_path, asked)
    blocks.record(event_of(Extension(blocks=1)))
    third = blocks.run()
    assert {c.blocks for c in third.comparisons} == {4}  # type: ignore[attr-defined]


def test_an_answer_that_got_weaker_is_stated_beside_the_one_before(tmp_path: Path) -> None:
    first, _ = finished(tmp_path)

    def tired(settings: Settings) -> ScriptedAnswer:
        """What was fast is now as slow as the baseline, by turns a bit faster and a bit slower."""
        turn = len(list(tmp_path.glob("runs/*"))) % 3
        return ScriptedAnswer({"rate": 100.0 + turn})

    second, history = finished(tmp_path, Extension(trials=2), tired)
    assert first.conclusion == "confirmed" and second.conclusion != "confirmed"
    assert f"before the extension: {first.headline}" in second.headline
    answer = SearchQuestion().answer(study(tmp_path), history)
    assert f"before the extension: {first.headline}" in answer.headline
    shown = SearchQuestion().exhibits(study(tmp_path), history)
    assert f"verdict before the extension by 2 trials: confirmed, {first.headline}" in shown.notes


def test_blocks_of_another_job_do_not_count_and_it_is_said(tmp_path: Path) -> None:
    finished(tmp_path)
    wider = study(tmp_path, job=JobLimits(ranks_per_node=Expression.parse("4")))
    run = campaign(tmp_path, wider)
    run.record(event_of(Extension(trials=5)))
    verdict = run.run()
    assert {c.blocks for c in verdict.comparisons} == {3}  # type: ignore[attr-defined]
    assert "3 earlier blocks do not count: their jobs asked for other resources" in verdict.headline


def test_a_journal_from_before_blocks_were_kept_means_what_it_meant(tmp_path: Path) -> None:
    finished(tmp_path)
    finished(tmp_path, Extension(trials=5))
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    for line in lines:
        if line["event"] == "confirm" and line.pop("first_block", 0):
            line["blocks"] -= 3
    at = next(number for number, line in enumerate(lines) if line["event"] == "extended")
    for line in lines[at:]:
        if line.get("stage") == "confirm":
            line["block"] -= 3
    history = History.replay(tmp_path, lines)
    assert history.count(Stage.CONFIRM) == 3 * 2 * 3


def test_more_blocks_join_those_there_are(tmp_path: Path) -> None:
    _, before = finished(tmp_path)
    verdict, after = finished(tmp_path, Extension(blocks=2))
    assert after.count(Stage.SEARCH) == before.count(Stage.SEARCH)
    assert after.candidates == before.candidates
    assert after.count(Stage.CONFIRM) == before.count(Stage.CONFIRM) * 5 / 3
    assert {c.blocks for c in verdict.comparisons} == {5}  # type: ignore[attr-defined]
    assert "extended by 2 blocks" in verdict.headline


def test_every_look_widens_the_interval(tmp_path: Path) -> None:
    finished(tmp_path)
    once, _ = finished(tmp_path, Extension(blocks=1))
    twice, history = finished(tmp_path, Extension(blocks=1))
    assert {c.level for c in (*once.comparisons, *twice.comparisons)} == {0.95}  # type: ignore[attr-defined]
    assert "extended by 1 block, then 1 block after a verdict: look 3, for which 3.7% of the error" in twice.headline
    assert len(read_history(tmp_path).extensions) == len(history.extensions) == 2


def test_all_looks_together_spend_no_more_than_the_error(tmp_path: Path) -> None:
    """Each at its own level, as it was, three looks at equal settings found a difference in 7 of 100 campaigns."""
    history = History(tmp_path)
    shares = []
    for _ in range(12):
        shares.append(error_share(history))
        history.extensions.append(Extension(blocks=1))
        history.extensions_compared.add(len(history.extensions))
    assert shares[0] == 0.8 and shares == sorted(shares, reverse=True)
    assert 0.99 < sum(shares) <= 1
    alarms = before = 0
    for seed in range(1000):
        rng = random.Random(seed)
        runs = [([rng.gauss(100, 2) for _ in range(2)], [rng.gauss(100, 2) for _ in range(2)]) for _ in range(15)]
        blocks = [Block(n, ("n0",), a, {"b": b}) for n, (a, b) in enumerate(runs)]
        looks = [blocks[:5], blocks[:10], blocks]
        alarms += any(differs(confirm(seen, share=share)) for seen, share in zip(looks, shares, strict=False))
        before += any(differs(confirm(seen, 1 - 0.05 / at, protocol=1)) for at, seen in enumerate(looks, 1))
    assert before / 1000 > 0.06 and alarms / 1000 < 0.05


def differs(found: Confirmation) -> bool:
    return any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in found.comparisons.values())


def test_journals_of_the_first_protocol_keep_their_levels(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert level_after(0.95, history) == 0.95
    history.extensions, history.extensions_compared = [Extension(blocks=1)] * 2, {1, 2}
    assert level_after(0.95, history) == 0.984
    assert "allows for 3 looks" in extension_text(history)


@pytest.mark.parametrize("extension", [Extension(trials=4), Extension(blocks=2)], ids=str)
def test_killed_after_any_line_it_goes_on_alike(tmp_path: Path, extension: Extension) -> None:
    whole = tmp_path / "whole"
    finished(whole)
    verdict, expected = finished(whole, extension)
    lines = (whole / "journal.jsonl").read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "extended")
    for cut in range(at + 1, len(lines), 19):
        again = tmp_path / f"cut-{cut}"
        again.mkdir()
        (again / "journal.jsonl").write_text("".join(lines[:cut]))
        found, history = finished(again)
        assert found.headline == verdict.headline, cut
        assert points(history, Stage.SEARCH) == points(expected, Stage.SEARCH), cut
        assert history.count(Stage.CONFIRM) == expected.count(Stage.CONFIRM), cut


def test_a_setting_that_failed_its_confirmation_is_not_confirmed_again(tmp_path: Path) -> None:
    ran: dict[str, int] = {}

    def fragile(settings: Settings) -> ScriptedAnswer:
        """The best setting passes once, then never again."""
        key = str(settings)
        ran[key] = ran.get(key, 0) + 1
        if settings["sum"] == 11 and ran[key] > 1:
            return ScriptedAnswer({}, exit_code=1)
        return rate(settings)

    space = study(tmp_path).space
    everything = study(tmp_path, baseline={"x": 0, "y": 0}, presets=tuple(space.points())[-3:])
    run = campaign(tmp_path, everything, fragile)
    run.run()
    run.journal.close()
    assert run.history.outcomes[Kind.CRASH]
    again = campaign(tmp_path, everything, fragile)
    again.record(event_of(Extension(trials=2)))
    again.run()
    assert {"x": 9, "y": 2} not in (again.history.candidates or ())


@pytest.mark.parametrize(
    ("trials", "blocks", "says"),
    [
        ("20", None, "with a plus"),
        ("+0", None, "with a plus"),
        ("+x", None, "with a plus"),
        ("+1", "+1", "one at a time"),
    ],
)
def test_what_cannot_be_meant_is_said(trials: str | None, blocks: str | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_extension(trials, blocks)


def test_what_has_no_end_or_nothing_to_go_on_with_is_refused(tmp_path: Path) -> None:
    assert parse_extension(None, None) is None
    both, blocks = ("trials", "blocks"), Extension(blocks=1)
    fresh = History(tmp_path)
    with pytest.raises(InputError, match="not over yet"):
        require_extendable(study(tmp_path), "search", both, fresh, blocks)
    with pytest.raises(InputError, match="kind edge cannot be extended by blocks"):
        require_extendable(study(tmp_path), "edge", (), fresh, blocks)
    with pytest.raises(InputError, match="use --blocks"):
        require_extendable(study(tmp_path), "compare", ("blocks",), fresh, Extension(trials=1))
    _, flat = finished(
        tmp_path, function=lambda settings: ScriptedAnswer({"rate": 100.0 - float(settings["sum"] or 0)})
    )
    assert not flat.candidates
    with pytest.raises(InputError, match="nothing was compared"):
        require_extendable(study(tmp_path), "search", both, flat, blocks)


STUDY = """version: 1
name: sleepy
workload: {kind: command, run: 'echo rate {x}', metrics: {rate: {regex: 'rate (\\d+)'}}}
space: {x: [1, 2, 3]}
goal: {maximize: rate}
baseline: {x: 1}
"""


@pytest.fixture
def ridgeline(monkeypatch: Any, capsys: Any) -> Callable[..., tuple[object, str]]:
    def call(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["ridgeline", *arguments])
        with pytest.raises(SystemExit) as leaving:
            main()
        seen = capsys.readouterr()
        return leaving.value.code or 0, seen.out + seen.err

    return call


def test_without_room_for_a_run_it_is_refused_until_the_budget_is_raised(tmp_path: Path) -> None:
    spent = study(tmp_path, budget=Budget(trials=12, node_hours=1.0))
    run = campaign(tmp_path, spent)
    run.run()
    run.journal.close()
    spent = study(tmp_path, budget=Budget(trials=12, node_hours=run.history.node_hours))
    with pytest.raises(InputError, match=r"no room for another run.*5 trials.*--node-hours \+"):
        require_room(spent, run.history, Extension(trials=5))
    assert run.history.instructions.more_node_hours == 0, "asking changes nothing"
    raised = Extension(trials=5, node_hours=1.0)
    require_room(spent, run.history, raised)
    more = campaign(tmp_path, spent)
    more.record(event_of(raised))
    more.run()
    more.journal.close()
    assert more.history.count(Stage.SEARCH) == 17
    spent = study(tmp_path, budget=Budget(wall_s=more.history.wall_s))
    with pytest.raises(InputError, match=r"`wall` .* \(--wall \+.* adds as much again\)"):
        require_room(spent, more.history, Extension(blocks=1))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"trials": "+1", "wall": "soon"}, "is not a duration"),
        ({"trials": "+1", "node_hours": "few"}, "such as --node-hours"),
        ({"trials": "+1", "node_hours": "0"}, "such as --node-hours"),
        ({"wall": "soon"}, "is not a duration"),
    ],
)
def test_what_is_added_to_a_budget_must_be_an_amount_for_something(words: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_extension(**{"trials": None, "blocks": None, **words})


def test_a_search_that_went_on_by_trials_can_be_verified(tmp_path: Path, ridgeline: Any) -> None:
    more = "budget: {trials: 1, wall: 1h}\nstages: {confirm: {top: 1, blocks: 3, repeats: 1}}\n"
    (tmp_path / "study.yaml").write_text(STUDY + more)
    out = str(tmp_path / "out")
    assert ridgeline("tune", str(tmp_path / "study.yaml"), "--out", out)[0] == 0
    code, said = ridgeline("resume", out, "--trials", "+1", "--wall", "+30m")
    assert code == 0 and "extended by 1 trial after a verdict" in said
    assert ridgeline("study", "verify", out)[0] == 0
    status = json.loads(ridgeline("status", out, "--json")[1])
    assert status["budget"]["trials"] == 2, "the budget as it is now"
    assert status["budget"]["wall_s"] == 5400
    assert (
        'ridgeline_budget_trials{study="sleepy"} 2\n' in ridgeline("study", "export", out, "--format", "prometheus")[1]
    )


def test_a_comparison_goes_on_by_blocks(tmp_path: Path, ridgeline: Any) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    out = str(tmp_path / "out")

    assert ridgeline("compare", str(tmp_path / "study.yaml"), "x=2", "--blocks", "3", "--out", out)[0] == 0
    code, said = ridgeline("resume", out, "--trials", "+2")
    assert code == 2 and "use --blocks" in said
    code, said = ridgeline("resume", out, "--blocks", "+1")
    assert code == 0 and "4 blocks" in said and "extended by 1 block after a verdict" in said
    code, said = ridgeline("study", "verify", out)
    assert code == 0, said
