"""The build axis, with a real shell as the compiler."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.builds import Builder, Recipe
from ridgeline.errors import StudyError
from ridgeline.executors.local import LocalExecutor
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.site import LOCAL
from ridgeline.records.study import Builds
from ridgeline.store.history import History


class Workshop:
    """A study folder with a source, a campaign folder, and what the builder recorded."""

    def __init__(self, root: Path, builds: Builds) -> None:
        self.source = root / "study"
        self.source.mkdir()
        (self.source / "kernel.c").write_text("int main(void){return 0;}\n")
        self.root = root / "campaign"
        self.root.mkdir()
        self.events: list[dict[str, Any]] = []
        self.history = History(self.root)
        self.builder = Builder(Recipe(builds, self.source), self.root, LocalExecutor(LOCAL), self.history, self.record)

    def record(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.history.apply({"at": 0.0, **event})


MAKE = ("echo '{opt}' >> $LOG", "cat kernel.c > kernel", "touch a.o b.o; mkdir obj; touch obj/c.o")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_each_variant_is_built_once_and_pruned(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",)))
    first = shop.builder.ensure({"opt": "-O2", "block": 1})
    again = shop.builder.ensure({"opt": "-O2", "block": 2})
    other = shop.builder.ensure({"opt": "-O3", "block": 2})
    assert isinstance(first, Path)
    assert first == again != other
    assert log.read_text().split() == ["-O2", "-O3"], "a knob that the commands do not read makes no new variant"
    names = {p.name for p in first.iterdir()}
    assert "kernel" in names
    assert not names & {"a.o", "b.o", "obj", "kernel.c"}
    assert shop.events[0]["files"] == len(names)
    assert shop.events[0]["settings"] == {"opt": "-O2"}


def test_a_changed_source_is_another_variant(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",), sources=("*.c",)))
    first = shop.builder.ensure({"opt": "-O2"})
    (shop.source / "kernel.c").write_text("int main(void){return 1;}\n")
    assert shop.builder.ensure({"opt": "-O2"}) != first


def test_a_failed_build_is_an_outcome_and_is_not_paid_for_twice(tmp_path: Path, log: Path) -> None:
    shop = Workshop(
        tmp_path, Builds(make=("echo tried >> $LOG", "echo 'kernel.c:1: error' >&2; false"), keep=("kernel",))
    )
    for _ in range(2):
        outcome = shop.builder.ensure({"opt": "-O2"})
        assert isinstance(outcome, Outcome)
        assert outcome.kind is Kind.BUILD_FAILED
        assert "kernel.c:1: error" in str(outcome.evidence)
    assert log.read_text().split() == ["tried"]


def test_a_build_that_makes_nothing_is_a_failed_build(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=("true",), keep=("kernel",)))
    outcome = shop.builder.ensure({})
    assert isinstance(outcome, Outcome)
    assert "kernel" in outcome.reason


def test_a_build_over_its_limit_is_ended(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=("sleep 30",), keep=("kernel",), limit_s=0.3))
    outcome = shop.builder.ensure({})
    assert isinstance(outcome, Outcome)
    assert "0.3" in outcome.reason


def test_a_deleted_variant_is_built_again(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",)))
    folder = shop.builder.ensure({"opt": "-O2"})
    assert isinstance(folder, Path)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert shop.builder.ensure({"opt": "-O2"}) == folder
    assert (folder / "kernel").exists()


def test_half_a_build_left_by_a_killed_controller_is_made_anew(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",)))
    half = shop.root / "builds" / shop.builder.recipe.key({"opt": "-O2"})
    half.mkdir(parents=True)
    (half / "kernel").write_text("half")
    folder = shop.builder.ensure({"opt": "-O2"})
    assert folder == half
    assert (half / "kernel").read_text().startswith("int main")


def test_sources_that_match_nothing_are_a_problem_of_the_study(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",), sources=("*.f90",)))
    with pytest.raises(StudyError, match=r"nothing matches \*\.f90"):
        shop.builder.ensure({"opt": "-O2"})


def test_a_build_that_was_killed_from_outside_is_made_again(tmp_path: Path, log: Path) -> None:
    once = 'if [ ! -e "$LOG" ]; then echo first > "$LOG"; kill -9 $PPID $$; fi; touch kernel'
    shop = Workshop(tmp_path, Builds(make=("echo 'x' > /dev/null", once), keep=("kernel",)))
    # the claim of a controller that went down with its build, as after a power cut
    key = shop.builder.recipe.key({})
    folder = shop.root / "builds" / key
    folder.mkdir(parents=True)
    (folder / "process").write_text(f"pid=999999\nstart_ticks=1\nboot=other\nhost={os.uname().nodename}\nlimit_s=9\n")
    (log).write_text("not the first\n")
    built = shop.builder.ensure({})
    assert isinstance(built, Path)
    assert (built / "kernel").exists()


def test_stopping_does_not_wait_for_a_build(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=("sleep 60", "touch kernel"), keep=("kernel",)))

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    shop.builder.heed_stop = stop
    began = time.monotonic()
    with pytest.raises(Stop):
        shop.builder.ensure({})
    assert time.monotonic() - began < 30
    assert not shop.events, "it is neither built nor failed"
    assert not any((shop.root / "builds").iterdir())
