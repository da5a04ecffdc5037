"""The study folder: never overwrites a campaign, carries what it needs, opens elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ridgeline.errors import StoreError, StudyError
from ridgeline.study import folder as folder_module
from ridgeline.study.folder import StudyFolder, asked, needed_files, require_same_question, to_be_read
from ridgeline.study.history import History
from ridgeline.study.journal import Journal
from ridgeline.study.study_file import read_study_file

STUDY = """version: 1
name: stencil
workload:
  kind: command
  run: ./wrap.sh --block {block} < inputs/grid_{size}.txt
  files: [tables]
space:
  block: [16, 32]
  size: [small, large]
goal: {maximize: wall_s}
baseline: {block: 16, size: small}
builds:
  make: gcc stencil.c -o stencil
  keep: [stencil]
  sources: ["*.h", extra]
"""


@pytest.fixture
def source(tmp_path):
    home = tmp_path / "home"
    for name in ("wrap.sh", "inputs/grid_small.txt", "inputs/grid_large.txt", "tables/a/b.dat", "stencil.c", "a.h"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "extra").mkdir()
    (home / "extra" / "deep.c").write_text("deep")
    (home / "unrelated.txt").write_text("stays at home")
    (home / "wrap.sh").chmod(0o755)
    (home / "study.yaml").write_text(STUDY)
    return read_study_file(home / "study.yaml")


NEEDED = {
    "wrap.sh",
    "inputs/grid_small.txt",
    "inputs/grid_large.txt",
    "tables/a/b.dat",
    "stencil.c",
    "a.h",
    "extra/deep.c",
}


def test_needed_files_are_those_the_study_names(source):
    assert {file.relative_to(source.study.folder).as_posix() for file in needed_files(source.study)} == NEEDED


def test_a_copied_folder_opens_elsewhere_with_the_same_study_and_files(source, tmp_path):
    out = tmp_path / "out"
    Journal.open(StudyFolder.create(out, source).journal_path).close()
    laptop = tmp_path / "laptop"
    shutil.move(out, laptop)
    shutil.rmtree(source.study.folder)
    there = StudyFolder.open(laptop).load()
    assert there.text == source.text
    assert there.study.space == source.study.space
    assert {file.relative_to(there.study.folder).as_posix() for file in needed_files(there.study)} == NEEDED
    assert (there.study.folder / "wrap.sh").stat().st_mode & 0o100


def test_a_campaign_is_never_overwritten(source, tmp_path):
    out = tmp_path / "out"
    with Journal.open(StudyFolder.create(out, source).journal_path) as journal:
        StudyFolder.create(out, source)  # nothing has happened yet
        journal.append({"event": "opened", "at": 1.0})
    with pytest.raises(StoreError, match=r"already holds a campaign.*resume"):
        StudyFolder.create(out, source)
    journal.path.write_text("")
    (out / "runs" / "0001-x1").mkdir(parents=True)
    with pytest.raises(StoreError, match="already holds a campaign"):
        StudyFolder.create(out, source)


def test_a_foreign_folder_is_left_alone(source, tmp_path):
    with pytest.raises(StoreError, match="not empty"):
        StudyFolder.create(source.study.folder / "tables", source)
    with pytest.raises(StoreError, match="is a file"):
        StudyFolder.create(source.study.folder / "wrap.sh", source)


def test_a_creation_cut_short_is_completed_by_the_next(source, tmp_path):
    out = tmp_path / "out"
    StudyFolder.create(out, source)
    (out / "sources" / "stencil.c").unlink()
    StudyFolder.create(out, source)
    assert (out / "sources" / "stencil.c").exists()


def test_a_folder_inside_the_studys_own_does_not_swallow_itself(source):
    out = source.study.folder / "extra" / "studies" / "one"
    StudyFolder.create(out, source)
    assert not (out / "sources" / "extra" / "studies").exists()


def test_large_inputs_are_linked_not_copied(source, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "LARGEST_COPY_BYTES", 3)
    out = StudyFolder.create(tmp_path / "out", source).path
    assert (out / "sources" / "stencil.c").is_symlink()
    assert (out / "sources" / "stencil.c").read_text() == "stencil.c"


def with_site(source, site):
    path = source.study.folder / "study.yaml"
    path.write_text(STUDY + f"site: {site}\n")
    return read_study_file(path)


def test_a_site_file_from_elsewhere_travels_with_its_name_and_script(source, tmp_path):
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "mine.yaml").write_text("batch: slurm\nqueue: short\noptions: {script: job.sh}\n")
    (sites / "job.sh").write_text("#!/bin/sh\n")
    out = tmp_path / "out"
    Journal.open(StudyFolder.create(out, with_site(source, "../sites/mine.yaml")).journal_path).close()
    shutil.rmtree(sites)
    shutil.move(out, tmp_path / "laptop")
    site = StudyFolder.open(tmp_path / "laptop").load().study.site
    assert (site.name, site.batch, site.queue) == ("mine", "slurm", "short")
    assert Path(str(site.options["script"])).read_text() == "#!/bin/sh\n"


def test_a_shipped_site_is_kept_as_it_was_when_the_study_ran(source, tmp_path):
    out = StudyFolder.create(tmp_path / "out", with_site(source, "slurm"))
    assert (out.path / "sites" / "slurm.yaml").is_file()
    assert out.load().study.site == with_site(source, "slurm").study.site


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("GO: 1", "GO: 2", ["site.env"]),
        ("launcher: srun", "launcher: openmpi", ["site.launcher"]),
        ("node_hour: 1", "node_hour: 2", ["site.prices"]),
        ("queue: short", "queue: long", []),
        ("jobs_at_once: 1", "jobs_at_once: 2", []),
    ],
)
def test_what_a_site_brings_to_the_program_is_a_part_of_the_question(source, tmp_path, old, new, named):
    site = tmp_path / "mine.yaml"
    site.write_text(
        "batch: slurm\nqueue: short\nenv: {GO: 1}\nlauncher: srun\njobs_at_once: 1\nprices: {node_hour: 1}\n"
    )
    made = StudyFolder.create(tmp_path / "out", with_site(source, "../mine.yaml"))
    before = asked(made.load())
    edited(site, old, new)
    assert made.changed(with_site(source, "../mine.yaml"), (), whole=False) == named, "asked again"
    edited(made.path / "sites" / "mine.yaml", old, new)
    if not named:
        require_same_question(made.load(), before)
        return
    with pytest.raises(StoreError, match=f"study.yaml with .*sites/mine.yaml: {named[0]} changed after"):
        require_same_question(made.load(), before)


def test_a_site_inside_the_study_finds_its_script_in_the_sources(source, tmp_path):
    (source.study.folder / "job.sh").write_text("#!/bin/sh\n")
    out = StudyFolder.create(tmp_path / "out", with_site(source, "{batch: slurm, options: {script: job.sh}}"))
    assert str(out.load().study.site.options["script"]).startswith(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.write_text("version: 1"), "ridgeline tune"),
        (lambda path: path.mkdir(), "not a study folder"),
        (lambda path: (path / "mine").mkdir(parents=True) or (path / "mine" / "journal.jsonl").touch(), "inside: mine"),
    ],
)
def test_what_is_not_a_study_folder_is_said_so(make, says, tmp_path):
    make(tmp_path / "x")
    with pytest.raises(StoreError, match=says):
        StudyFolder.open(tmp_path / "x")


def test_deleted_run_folders_are_found(tmp_path):
    folder = StudyFolder(tmp_path)
    kept, gone = folder.path / "runs/0001-tp8", folder.path / "runs/0002-tp16"
    kept.mkdir(parents=True)
    recorded = [path.relative_to(tmp_path) for path in (kept, gone)]
    assert recorded[0] == Path("runs/0001-tp8")
    assert folder.missing(recorded) == [Path("runs/0002-tp16")]


def test_what_a_link_leads_to_outside_is_not_copied(tmp_path, source):
    """A study folder is handed on: what lies elsewhere and is only linked beside the study stays there."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret")
    home = source.study.folder
    for name in ("a.h", "tables/a/b.dat", "wrap.sh"):
        (home / name).unlink()
        (home / name).symlink_to(private / "key")
    (home / "extra" / "deep.c").unlink()
    (home / "extra").rmdir()
    (home / "extra").symlink_to(private)
    made = StudyFolder.create(tmp_path / "out", source)
    files = [path for path in made.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files and not [path for path in files if "secret" in path.read_text()]
    assert (made.path / "sources" / "a.h").read_text() == "secret", "it is still found where it is"


def test_what_a_program_said_is_kept_when_the_campaign_is_taken_up_without_it(tmp_path: Path, source) -> None:
    there = {"python": {"versions": {"vllm": "0.12.0"}, "flags": {}}, "model": {"path": "/m", "config": "{}"}}
    gone = {"python": {"versions": {}, "flags": {}}}
    newer = {"python": {"versions": {"vllm": "0.13.0"}, "flags": {}}}

    def recorded(*programs: object) -> object:
        history = History(tmp_path)
        history.receipts += [{"programs": said} for said in programs]
        return to_be_read(source, history).study.recorded

    assert recorded(there, gone) == there
    assert recorded(there, None, "anything") == there
    assert recorded(there, newer) == there | newer
    assert recorded(gone) == gone
    assert recorded() == {}


def edited(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("edit", "question", "whole"),
    [
        (lambda home: None, [], []),
        (lambda home: edited(home / "study.yaml", "[16, 32]", "[16, 32, 64]"), ["space"], ["space"]),
        (lambda home: edited(home / "study.yaml", "[16, 32]", "[16, 32.0]"), ["space"], ["space"]),
        (lambda home: edited(home / "study.yaml", "[16, 32]", "[16,   32]  # a comment"), [], []),
        (lambda home: edited(home / "study.yaml", "maximize", "minimize"), ["goal"], ["goal"]),
        (lambda home: edited(home / "study.yaml", "name: stencil", "name: other"), [], ["name"]),
        (lambda home: edited(home / "study.yaml", "baseline:", "budget: {trials: 9}\nbaseline:"), [], ["budget"]),
        (lambda home: edited(home / "study.yaml", "  keep: [stencil]\n", "  keep: [x]\n"), ["builds"], ["builds"]),
        (
            lambda home: edited(home / "study.yaml", "goal:", "site: {batch: slurm}\ngoal:"),
            ["site.batch"],
            ["site.batch"],
        ),
        (
            lambda home: edited(home / "study.yaml", "goal:", "job: {cores: 2, limit: 9}\ngoal:"),
            ["job.cores"],
            ["job.cores", "job.limit"],
        ),
        (lambda home: edited(home / "stencil.c", "stencil", "faster"), ["stencil.c"], ["stencil.c"]),
        (lambda home: edited(home / "unrelated.txt", "stays", "goes"), [], []),
        (
            lambda home: (edited(home / "study.yaml", "maximize", "minimize"), edited(home / "a.h", "a", "b")),
            ["goal", "a.h"],
            ["goal", "a.h"],
        ),
    ],
)
def test_what_was_edited_since_is_named(source, tmp_path, edit, question, whole):
    """Of the question alone, or of the whole study: keys first, then files; a comment or a space is no change."""
    made = StudyFolder.create(tmp_path / "out", source)
    edit(source.study.folder)
    now = read_study_file(source.study.folder / "study.yaml")
    assert made.changed(now, (), whole=False) == question
    assert made.changed(now, (), whole=True) == whole


def test_a_folder_with_keys_that_were_taken_back_opens_but_does_not_go_on(source, tmp_path):
    folder = StudyFolder.create(tmp_path / "out", source)
    with (folder.path / "study.yaml").open("a") as study:
        study.write("budget: {trials: 7, grant: shared.jsonl}\nnotify: {command: echo, mail: me@site, smtp: site}\n")
    read = folder.load().study
    assert (read.budget.grant, read.notify.command) == ("shared.jsonl", "echo")
    with pytest.raises(StudyError) as refused:
        folder.load(to_run=True)
    mail, smtp = refused.value.problems
    assert "notify.mail: mails are gone; write `command: mail -s" in mail
    assert "notify.smtp: mails are gone" in smtp
