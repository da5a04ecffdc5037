"""The build axis, with a real shell as the compiler."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.builds import Builder, Recipe, _failed_build, _missing_name
from ridgeline.errors import StudyError
from ridgeline.executors.local import LocalExecutor
from ridgeline.executors.pbs import pbs
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending
from ridgeline.records.site import LOCAL, Site
from ridgeline.records.study import Builds, JobLimits
from ridgeline.study.history import History


class Workshop:
    """A study folder with a source, a campaign folder, and what the builder recorded."""

    def __init__(self, root: Path, builds: Builds, job: JobLimits = JobLimits(), slots: int = 1) -> None:
        self.source = root / "study"
        self.source.mkdir(parents=True)
        (self.source / "kernel.c").write_text("int main(void){return 0;}\n")
        self.root = root / "campaign"
        self.root.mkdir()
        self.events: list[dict[str, Any]] = []
        self.history = History(self.root)
        executor = LocalExecutor(replace(LOCAL, jobs_at_once=slots))
        self.builder = Builder(Recipe(builds, self.source, job), self.root, executor, self.history, self.record)

    def built(self, settings: dict[str, Any]) -> Path | Outcome:
        """What the builder says once it knows."""
        give_up = time.monotonic() + 120
        while (found := self.builder.ensure(settings)) is None:
            assert time.monotonic() < give_up
            self.builder.executor.wait(0.5)
            self.builder.collect()
        return found

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
    first = shop.built({"opt": "-O2", "block": 1})
    again = shop.built({"opt": "-O2", "block": 2})
    other = shop.built({"opt": "-O3", "block": 2})
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
    first = shop.built({"opt": "-O2"})
    (shop.source / "kernel.c").write_text("int main(void){return 1;}\n")
    assert shop.built({"opt": "-O2"}) != first


def test_a_failed_build_is_an_outcome_and_is_not_paid_for_twice(tmp_path: Path, log: Path) -> None:
    shop = Workshop(
        tmp_path, Builds(make=("echo tried >> $LOG", "echo 'kernel.c:1: error' >&2; false"), keep=("kernel",))
    )
    for _ in range(2):
        outcome = shop.built({"opt": "-O2"})
        assert isinstance(outcome, Outcome)
        assert outcome.kind is Kind.BUILD_FAILED
        assert "kernel.c:1: error" in str(outcome.evidence)
    assert log.read_text().split() == ["tried"]


def test_a_build_that_makes_nothing_is_a_failed_build(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=("true",), keep=("kernel",)))
    outcome = shop.built({})
    assert isinstance(outcome, Outcome)
    assert "kernel" in outcome.reason


def test_a_build_over_its_limit_is_ended(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=("sleep 30",), keep=("kernel",), limit_s=0.3))
    outcome = shop.built({})
    assert isinstance(outcome, Outcome)
    assert "0.3" in outcome.reason


def test_a_deleted_variant_is_built_again(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",)))
    folder = shop.built({"opt": "-O2"})
    assert isinstance(folder, Path)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert shop.built({"opt": "-O2"}) == folder
    assert (folder / "kernel").exists()


def test_half_a_build_left_by_a_killed_controller_is_made_anew(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",)))
    half = shop.root / "builds" / shop.builder.recipe.key({"opt": "-O2"})
    half.mkdir(parents=True)
    (half / "kernel").write_text("half")
    folder = shop.built({"opt": "-O2"})
    assert folder == half
    assert (half / "kernel").read_text().startswith("int main")


def test_sources_that_match_nothing_are_a_problem_of_the_study(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=MAKE, keep=("kernel",), sources=("*.f90",)))
    with pytest.raises(StudyError, match=r"nothing matches \*\.f90"):
        shop.built({"opt": "-O2"})


def test_a_build_that_was_killed_from_outside_is_made_again(tmp_path: Path, log: Path) -> None:
    once = 'if [ ! -e "$LOG" ]; then echo first > "$LOG"; kill -9 $PPID $$; fi; touch kernel'
    shop = Workshop(tmp_path, Builds(make=("echo 'x' > /dev/null", once), keep=("kernel",)))
    # the claim of a controller that went down with its build, as after a power cut
    key = shop.builder.recipe.key({})
    folder = shop.root / "builds" / key
    folder.mkdir(parents=True)
    (folder / "process").write_text(f"pid=999999\nstart_ticks=1\nboot=other\nhost={os.uname().nodename}\nlimit_s=9\n")
    (log).write_text("not the first\n")
    built = shop.built({})
    assert isinstance(built, Path)
    assert (built / "kernel").exists()


def test_stopping_does_not_wait_for_a_build(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=("sleep 60", "touch kernel"), keep=("kernel",)))
    began = time.monotonic()
    assert shop.builder.ensure({}) is None
    shop.builder.leave()
    assert time.monotonic() - began < 55
    assert not shop.events, "it is neither built nor failed"
    assert not any((shop.root / "builds").iterdir())


def test_a_failed_build_leaves_only_how_it_was_made_and_its_files_are_counted(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, Builds(make=(*MAKE, "echo 'x.c:1:1: error: no' >&2; exit 1"), keep=("kernel",)))
    assert isinstance(shop.built({"opt": "-O2"}), Outcome)
    (folder,) = (shop.root / "builds").iterdir()
    assert {path.name for path in folder.iterdir()} == {"run.sh", "env", "stdout", "stderr"}
    assert shop.events[0]["files"] == 4


def real_make(tmp_path: Path, files: dict[str, str], *goals: str) -> Outcome:
    """The outcome of a build with the real make."""
    shop = Workshop(tmp_path, Builds(make=(f"make -k {' '.join(goals)}",), keep=("kernel",), sources=tuple(files)))
    for name, text in files.items():
        (shop.source / name).write_text(text)
    outcome = shop.built({})
    assert isinstance(outcome, Outcome)
    return outcome


def test_the_line_that_decides_is_the_compilers_first_error_not_makes_last(tmp_path: Path) -> None:
    files = {
        "Makefile": "kernel: a.o b.o\n\tgcc -o $@ $^\n%.o: %.c\n\tgcc -c $<\n",
        "a.c": "#warning first\nint main(void){ return nowhere; }\n",
        "b.c": "int b(void){ return nothing_either; }\n",
    }
    outcome = real_make(tmp_path, files)
    assert outcome.kind is Kind.BUILD_FAILED
    assert outcome.evidence is not None
    assert outcome.evidence.text.startswith("a.c:2:")
    assert "nowhere" in outcome.evidence.text


def test_the_line_that_decides_is_the_linkers_first_error(tmp_path: Path) -> None:
    files = {
        "Makefile": "kernel: a.o\n\tgcc -o $@ $^ -lm\n",
        "a.c": "int far(int); int main(void){ return far(far(1)); }\n",
    }
    outcome = real_make(tmp_path, files)
    assert outcome.evidence is not None
    assert "undefined reference to `far'" in outcome.evidence.text


# as gfortran 12, Intel's ifx and NVIDIA's nvfortran print them; then make
FORTRAN = """\
a.f90:2:8:

    2 |   x = y +
      |        1
Error: Invalid character in name at (1)
make[1]: *** [GNUmakefile:5: a.o] Error 1
"""
INTEL = """\
a.f90(2): remark #8291: Recommended relationship
a.f90(3): error #6404: This name does not have a type.   [Y]
compilation aborted for a.f90 (code 1)
make: *** [a.o] Error 1
"""
NVIDIA = "NVFORTRAN-S-0034-Syntax error at or near end of line (a.f90: 2)\nmake: *** [a.o] Error 2\n"


@pytest.mark.parametrize(
    ("printed", "decides"),
    [
        (FORTRAN, "a.f90:2:8: Error: Invalid character in name at (1)"),
        (INTEL, "a.f90(3): error #6404: This name does not have a type.   [Y]"),
        (NVIDIA, "NVFORTRAN-S-0034-Syntax error at or near end of line (a.f90: 2)"),
        ("/usr/bin/ld: cannot find -lmkl_rt\ncollect2: error: ld returned 1 exit status\n", "cannot find -lmkl_rt"),
    ],
)
def test_errors_of_other_compilers(tmp_path: Path, printed: str, decides: str) -> None:
    (tmp_path / "stderr").write_text(printed)
    outcome = _failed_build(tmp_path, Ending(Cause.EXITED, 2))
    assert outcome.kind is Kind.BUILD_FAILED
    assert outcome.evidence is not None
    assert outcome.evidence.text.endswith(decides)


COMPILERS = Builds(make=("echo {compiler} >> $LOG", "{compiler} {opt} -o kernel kernel.c"), keep=("kernel",))


def test_a_missing_compiler_is_found_once_and_blames_the_value_that_names_it(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, COMPILERS)
    for opt in ("-O2", "-O3", "-O1"):
        outcome = shop.built({"compiler": "icx-not-here", "opt": opt})
        assert isinstance(outcome, Outcome)
        assert outcome.kind is Kind.SITE_FAULT
        assert "icx-not-here is not where this is built" in outcome.reason
    assert isinstance(shop.built({"compiler": "gcc", "opt": "-O2"}), Path)
    assert log.read_text().split() == ["icx-not-here", "gcc"]
    assert shop.events[0]["missing"] == {"compiler": "icx-not-here"}


def test_a_missing_compiler_is_looked_for_again_when_the_campaign_is_taken_up(tmp_path: Path, log: Path) -> None:
    shop = Workshop(tmp_path, COMPILERS)
    missing = {"compiler": "icx-not-here", "opt": "-O2"}
    shop.built(missing)
    shop.record({"event": "opened"})
    shop.built(missing)
    assert log.read_text().split() == ["icx-not-here"] * 2


@pytest.mark.parametrize(
    ("printed", "code", "name"),
    [
        ("make: ifx: No such file or directory\nmake: *** [GNUmakefile:3: a.o] Error 127\n", 2, "ifx"),
        ("/bin/sh: 1: ifx: not found\nmake: *** [Makefile:2: a.o] Error 127\n", 2, "ifx"),
        ("The Open MPI wrapper compiler was unable to find the specified compiler\nifx in your PATH.\n", 1, "ifx"),
        ("ridgeline: a module did not load: ifx/2099\n", 74, "ifx/2099"),
        ("/bin/sh: 1: ifort: not found\na.c:1:1: error: no\nmake: *** [a.o] Error 1\n", 2, ""),
    ],
)
def test_what_is_missing_is_told_from_what_a_makefile_merely_tried(
    tmp_path: Path, printed: str, code: int, name: str
) -> None:
    (tmp_path / "stderr").write_text(printed)
    outcome = _failed_build(tmp_path, Ending(Cause.EXITED, code))
    assert (outcome.kind is Kind.SITE_FAULT) == bool(name)
    assert outcome.evidence is not None
    assert _missing_name(outcome.evidence) == name


def test_builds_at_the_site_run_several_at_once_and_builds_here_one_by_one(tmp_path: Path) -> None:
    both = "touch $OUT/{opt}; until [ -e $OUT/a ] && [ -e $OUT/b ]; do sleep 0.05; done; touch kernel"
    builds = Builds(make=(both.replace("$OUT", str(tmp_path)),), keep=("kernel",), where="site", limit_s=60)
    shop = Workshop(tmp_path, builds, slots=2)
    assert shop.builder.ensure({"opt": "a"}) is None
    # each waits for the other: one after the other they would run into their limit
    assert isinstance(shop.built({"opt": "b"}), Path)
    assert isinstance(shop.built({"opt": "a"}), Path)
    here = Workshop(tmp_path / "here", replace(builds, where="here"), slots=2)
    assert here.builder.slots == 1


def test_a_variant_is_built_with_the_modules_that_follow_a_knob(tmp_path: Path) -> None:
    job = JobLimits(modules=("gcc/{gcc}", "{extra}"))
    shop = Workshop(tmp_path, Builds(make=("touch kernel",), keep=("kernel",)), job)
    recipe = shop.builder.recipe
    assert recipe.job.loaded({"gcc": 13, "extra": None}) == ("gcc/13",)
    assert recipe.key({"gcc": 12, "extra": ""}) != recipe.key({"gcc": 13, "extra": ""})
    assert recipe.used({"gcc": 13, "extra": "", "block": 1}) == {"gcc": 13, "extra": ""}
    outcome = shop.built({"gcc": 99, "extra": ""})
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "gcc/99 is not where this is built"
    assert shop.events[0]["missing"] == {"gcc": 99}


def test_a_build_at_the_site_outlives_its_controller_and_is_found_again(pbs_standin: Path, tmp_path: Path) -> None:
    builds = Builds(make=("until [ -e {go} ]; do sleep 0.05; done", "touch kernel"), keep=("kernel",), where="site")
    shop, settings = Workshop(tmp_path, builds), {"go": str(tmp_path / "go")}
    site = Site(name="here", batch="pbs", queue="workq", poll_s=0.2, jobs_at_once=2)
    shop.builder.executor = pbs(site)
    assert shop.builder.ensure(settings) is None
    shop.builder.leave()
    after = Builder(shop.builder.recipe, shop.root, pbs(site), shop.history, shop.record)
    shop.builder = after
    assert after.ensure(settings) is None
    (tmp_path / "go").touch()
    assert isinstance(shop.built(settings), Path)
    assert len(list(pbs_standin.glob("*.vm.json"))) == 1, "it was handed over once"
