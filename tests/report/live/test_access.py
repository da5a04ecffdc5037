"""Who gets in: nobody without the token, no other site, no other name; and the browser is told to be strict."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.errors import InputError, StoreError
from ridgeline.report.live.access import SHORTEST_TOKEN
from ridgeline.report.live.server import _body, token_from
from ridgeline.study.history import read_history
from ridgeline.study.instructions import LARGEST_BYTES, waiting_instructions
from tests.cli.test_faces import QUICK, message
from tests.command_line import ridgeline
from tests.report.live.served import TOKEN, Served, served

PATHS = [
    "/",
    "/events",
    "/metrics",
    "/static/watch.js",
    "/study/quick/",
    "/study/quick/events",
    "/nothing",
    "/?token=x",
]


def quick(folder: Path, finish: bool = True) -> Path:
    """A study folder whose campaign ran to its end; or only to its first line."""
    (folder / "quick.yaml").write_text(QUICK.format(what="true"))
    made = assemble_folder(check_study(folder / "quick.yaml"), folder / "quick", "quick")
    with assemble_campaign(made, SearchQuestion()) as campaign:
        if finish:
            campaign.run()
        else:
            campaign.record({"event": "opened", "kind": "search", "question": {}, "asked": {}})
    return made.path


@pytest.fixture(scope="module")
def open_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick(tmp_path_factory.mktemp("open"), finish=False)


@pytest.fixture(scope="module")
def there(open_study: Path) -> Iterator[Served]:
    with served(open_study) as server:
        yield server


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE"])
def test_without_the_token_every_path_is_closed(there: Served, path: str, method: str) -> None:
    assert there.ask(path, method).status == 401
    assert there.ask(path, method, Cookie=f"ridgeline-{there.port}=wrong").status == 401
    assert there.ask(path, method, Authorization="Bearer wrong").status == 401


def test_the_token_opens_by_address_cookie_and_header(there: Served) -> None:
    first = there.ask(f"/?token={TOKEN}")
    assert first.status == 200
    assert first.headers["set-cookie"] == f"ridgeline-{there.port}={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert TOKEN not in first.text
    assert there.ask("/", **there.cookie).status == 200
    assert there.ask("/metrics", Authorization=f"Bearer {TOKEN}").status == 200
    assert there.ask("/nothing", **there.cookie).status == 404


def test_another_name_for_this_address_is_refused(there: Served) -> None:
    """DNS rebinding: a page at evil.example whose name suddenly means 127.0.0.1."""
    assert there.ask("/", Host="evil.example", **there.cookie).status == 403
    assert there.ask("/", Host="localhost:9000", **there.cookie).status == 200, "through ssh -L"
    assert there.ask("/", Host="[::1]:9000", **there.cookie).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", ""])
def test_another_site_cannot_tell_a_campaign_anything(there: Served, open_study: Path, origin: str) -> None:
    refused = there.tell("quick", {"id": "from-elsewhere", "act": "stop"}, Origin=origin)
    assert refused.status == 403
    assert not waiting_instructions(open_study)


def test_a_form_of_another_site_is_refused_even_without_origin(there: Served, open_study: Path) -> None:
    told = {"id": "from-elsewhere", "act": "stop"}
    path = "/study/quick/instructions"
    assert there.ask(path, "POST", told, **there.cookie).status == 403
    assert there.ask(path, "POST", told, Sec_Fetch_Site="cross-site", Origin=there.origin, **there.cookie).status == 403
    form = {"Content_Type": "text/plain", "Origin": there.origin}
    assert there.ask(path, "POST", told, **form, **there.cookie).status == 415
    assert not waiting_instructions(open_study)


def test_every_answer_keeps_the_browser_strict(there: Served) -> None:
    for path in ("/", "/nothing", "/static/watch.js"):
        for headers in ({}, there.cookie):
            got = there.ask(path, **headers).headers
            policy = got["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert got["x-content-type-options"] == "nosniff"
            assert got["referrer-policy"] == "no-referrer"
            assert got["cache-control"] == "no-store"
            assert "server" not in got


def test_a_program_with_the_token_may_tell_and_what_is_wrong_is_said(there: Served, open_study: Path) -> None:
    path, own = "/study/quick/instructions", {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json"}
    assert "no act 'fly'" in there.ask(path, "POST", {"id": "x" * 8, "act": "fly"}, **own).text
    assert there.ask(path, "POST", "{", **own).status == 400
    assert there.ask(path, "POST", "x" * 70_000, **own).status == 400
    assert there.ask("/study/other/instructions", "POST", {"id": "x" * 8, "act": "stop"}, **own).status == 404
    assert not waiting_instructions(open_study)
    assert there.ask(path, "POST", {"id": "by-program", "act": "pause"}, **own).status == 202
    assert there.ask(path, "POST", {"id": "by-program", "act": "pause"}, **own).status == 202
    assert [*waiting_instructions(open_study)] == ["by-program"]
    assert "no controller is running on this folder" in there.ask("/", **there.cookie).text


def test_an_instruction_of_any_length_is_not_read(there: Served, open_study: Path) -> None:
    """Right but for its length, so that nothing else can be wrong with it."""
    path, own = "/study/quick/instructions", {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json"}
    long = json.dumps({"id": "very-long", "act": "pause"}) + " " * LARGEST_BYTES
    refused = there.ask(path, "POST", long, **own)
    assert refused.status == 400
    assert f"at most {LARGEST_BYTES} bytes" in refused.text
    assert "very-long" not in waiting_instructions(open_study)


def test_a_body_without_end_is_left_as_soon_as_it_is_too_long() -> None:
    read = 0

    class Endless:
        async def stream(self) -> AsyncIterator[bytes]:
            nonlocal read
            while True:
                read += 4096
                assert read <= LARGEST_BYTES + 4096, "and no more is kept in memory"
                yield b" " * 4096

    with pytest.raises(ValueError, match="at most"):
        asyncio.run(_body(Endless()))  # type: ignore[arg-type]


def test_a_campaign_that_is_over_takes_nothing(tmp_path: Path) -> None:
    done = quick(tmp_path)
    with served(done) as there:
        refused = there.tell("quick", {"id": "too-late-", "act": "pause"})
        assert refused.status == 409
        assert "ridgeline resume" in json.loads(refused.text)["told"]
        assert "finished" in there.ask("/", **there.cookie).text
        assert (
            there.ask("/study/quick/report", **there.cookie).headers["content-security-policy"].startswith("sandbox ")
        )
    assert not waiting_instructions(done)
    assert read_history(done).verdict is not None


def test_the_verb_prints_the_address_with_its_token_on_one_line(open_study: Path) -> None:
    command = [sys.executable, "-m", "ridgeline", "watch", str(open_study), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line, hint = process.stdout.readline(), process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})\n", line)
        assert found, line
        assert f"ssh -L {found[1]}:127.0.0.1:{found[1]}" in hint
        there = Served(int(found[1]))
        assert there.ask("/").status == 401
        assert there.ask(f"/?token={found[2]}").status == 200
    finally:
        process.terminate()
        process.wait(60)


def test_what_cannot_be_watched_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no study folder here" in message(ridgeline("watch", "empty", cwd=tmp_path), 5)
    assert "no study folder here" in message(ridgeline("watch", "missing", cwd=tmp_path), 5)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "study.yaml").write_text("version: 1\n")
    assert "no journal.jsonl here" in message(ridgeline("watch", "half", cwd=tmp_path), 5)


def test_a_port_that_is_taken_is_named(open_study: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = message(ridgeline("watch", open_study, "--port", port, cwd=open_study), 2)
    assert f"port {port} cannot be used" in told and "--port 0" in told


def test_another_address_needs_a_token_that_somebody_chose(open_study: Path, tmp_path: Path) -> None:
    told = message(ridgeline("watch", open_study, "--host", "0.0.0.0", cwd=open_study), 2)
    assert "--token-file" in told
    weak = tmp_path / "weak"
    weak.write_text("1234\n")
    with pytest.raises(InputError, match="at least 16"):
        token_from(weak, "0.0.0.0")
    strong = tmp_path / "strong"
    strong.write_text("0123456789abcdef\n")
    assert token_from(strong, "0.0.0.0") == "0123456789abcdef"
    assert len(token_from(None, "127.0.0.1")) >= 32


def test_prometheus_gets_all_studies_with_one_head_for_each_name(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        quick(tmp_path / name, finish=False)
        text = (tmp_path / name / "quick" / "study.yaml").read_text()
        (tmp_path / name / "quick" / "study.yaml").write_text(text.replace("name: quick", f"name: quick-{name}"))
    with served(tmp_path) as there:
        text = there.ask("/metrics", **there.cookie).text
    assert text.count("# TYPE ridgeline_paused gauge") == 1
    assert 'ridgeline_paused{study="quick-a"} 0\nridgeline_paused{study="quick-b"} 0\n' in text


def _harm(study: Path, harm: str) -> None:
    if harm == "empty journal":
        (study / "journal.jsonl").write_text("")
    elif harm == "no journal":
        (study / "journal.jsonl").unlink()
    elif harm == "no study file":
        (study / "study.yaml").unlink()
    else:
        (study / "study.yaml").write_text("version: 1\nname: [\n")


@pytest.mark.parametrize(
    ("harm", "meanwhile", "later"),
    [
        ("empty journal", "controller not running", "controller not running"),
        ("no journal", "was the folder moved?", None),
        ("no study file", "controller not running", "no study.yaml here"),
        ("half a study file", "controller not running", "not YAML"),
    ],
)
def test_a_folder_with_something_wrong_is_shown_with_a_note(
    tmp_path: Path, harm: str, meanwhile: str, later: str | None
) -> None:
    study = quick(tmp_path, finish=False)
    with served(study) as there:
        assert there.ask("/", **there.cookie).status == 200
        _harm(study, harm)
        page = there.ask("/", **there.cookie)
        assert page.status == 200 and meanwhile in page.text and "quick" in page.text
    if later is None:
        return  # no longer a study folder: the verb says so
    with served(tmp_path) as there:
        listed, page = there.ask("/", **there.cookie), there.ask("/study/quick/", **there.cookie)
        assert listed.status == page.status == 200
        assert later in page.text and "Traceback" not in page.text


def test_only_studies_are_listed(tmp_path: Path) -> None:
    quick(tmp_path)
    (tmp_path / "two.service" / "members").mkdir(parents=True)
    (tmp_path / "two.service" / "journal.jsonl").write_text('{"event":"going-up","at":1.0}\n')
    with served(tmp_path) as there:
        listed = there.ask("/", **there.cookie).text
        assert "quick" in listed and "two.service" not in listed
    with pytest.raises(StoreError, match="no study folder here"), served(tmp_path / "two.service"):
        pass


def test_only_watch_pays_for_the_server() -> None:
    code = "import sys; from ridgeline.cli.main import command_named; command_named('watch'), command_named('status'); "
    code += "sys.exit(bool({'starlette', 'uvicorn', 'anyio'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_token_outlives_the_page_and_is_read_by_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "state/ridgeline/watch-token"
    first = token_from(None, "127.0.0.1")
    assert token_from(None, "127.0.0.1") == first == file.read_text().strip()
    assert file.stat().st_mode & 0o077 == 0
    file.chmod(0o644)
    second = token_from(None, "127.0.0.1")
    assert second != first and file.stat().st_mode & 0o077 == 0, "others may have read it"
    file.write_text("short\n")
    assert token_from(None, "127.0.0.1") not in ("short", second)
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert len(token_from(None, "127.0.0.1")) >= SHORTEST_TOKEN, (
        "where nothing can be kept there is a page all the same"
    )
