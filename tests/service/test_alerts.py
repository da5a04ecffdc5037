"""What `keep` tells the world: alerts, metrics, a unit of systemd; and logs that do not grow for ever."""

from __future__ import annotations

import gzip
import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ridgeline.errors import SiteError, StudyError
from ridgeline.records.study import NotifyChoice
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep.keeper import Keeper, rotate, serve_metrics
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.render import render
from ridgeline.study.notify import HOUR_S, SAME_AFTER_S, Notifier

FILE = """\
version: 1
model: llama-8b
engine: {kind: twin, gpu: h200}
units: [{settings: {tp: 1}}]
"""


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A webhook, and what it was told."""
    told: list[dict[str, object]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", told
        server.shutdown()


def notifier(choice: NotifyChoice, clock: Callable[[], float] = time.monotonic) -> tuple[Notifier, list[str]]:
    said: list[str] = []
    return Notifier("chat", choice, said.append, clock), said


def test_an_alert_goes_once_to_everybody_who_is_named(
    hook: tuple[str, list[dict[str, object]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, told = hook
    monkeypatch.setenv("HOOK", f"{url}/secret")
    command = f'printf "%s\\n" "$RIDGELINE_ALERT" >> {tmp_path}/lines; cat >> {tmp_path}/documents'
    tell, said = notifier(NotifyChoice(webhook_env="HOOK", command=command))
    for _ in range(3):
        tell("hung", "server-1", "no token for 12 s; it is started again")
    tell("serves-again", "server-1", "at http://x")
    tell.close()
    assert [alert["kind"] for alert in told] == ["hung", "serves-again"]
    assert told[0]["text"] == "chat: server-1: hung: no token for 12 s; it is started again"
    assert (tmp_path / "lines").read_text().splitlines()[0] == told[0]["text"]
    assert json.loads((tmp_path / "documents").read_text().partition("}")[0] + "}")["member"] == "server-1"
    assert said == []


def test_a_hook_that_fails_is_named_once_and_stops_nobody(
    hook: tuple[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    url, _ = hook
    choice = NotifyChoice(webhook=f"{url}/broken", command="echo no >&2; exit 3")
    tell, said = notifier(choice)
    for n in range(3):
        tell("dead", "server-1", f"exit code {n}")
    tell.close()
    assert len(said) == 2
    assert "webhook failed (HTTP Error 500" in said[0]
    assert "command failed (exit code 3: no)" in said[1]


def test_alerts_are_limited_and_those_held_back_are_counted(hook: tuple[str, list[dict[str, object]]]) -> None:
    url, told = hook
    now_s = [0.0]
    tell, _ = notifier(NotifyChoice(webhook=url, most_an_hour=3), lambda: now_s[0])
    for n in range(10):
        tell("dead", "server-1", f"exit code {n}")
    now_s[0] = max(HOUR_S, SAME_AFTER_S)
    tell("dead", "server-1", "exit code 0")
    tell.close()
    assert [alert["what"] for alert in told] == ["exit code 0", "exit code 1", "exit code 2", "exit code 0"]
    assert told[-1]["held_back"] == 7


def test_the_file_names_whom_to_tell(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(FILE + "notify: {webhook_env: HOOK, command: logger x}\n")
    assert load_service(path).notify.ways == ["webhook", "command"]
    path.write_text(FILE + "notify: {wehbook: x}\n")
    with pytest.raises(StudyError, match="wehbook"):
        load_service(path)


def test_prometheus_reads_what_keep_sees(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(FILE)
    keeper = Keeper(Operator(load_service(path), tmp_path / "service"))
    with keeper.operator.action():
        for event in ("planned", "submitted", "ended"):
            told = {"event": event, "member": "server-0", "generation": 2, "ticket": "1 x", "reason": "exit code 1"}
            keeper.operator.folder.record(told)
        keeper.operator.folder.record({"event": "going-down"})
    keeper.step()
    server = serve_metrics(keeper, 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        with pytest.raises(SiteError, match="choose another port for --metrics"):
            serve_metrics(keeper, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
    assert 'ridgeline_keep_polls_total{service="chat"} 1' in page
    assert 'ridgeline_member_starts_total{service="chat",member="server-0"} 2' in page
    assert 'ridgeline_member_state{service="chat",member="server-0",state="ended"} 1' in page
    assert 'ridgeline_member_state{service="chat",member="server-0",state="ready"} 0' in page


def test_a_unit_of_systemd_runs_keep_and_spares_the_servers_when_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "my 100% chat"
    folder.mkdir()
    path = folder / "chat.yaml"
    path.write_text(FILE + "notify: {webhook_env: HOOK}\n")
    (unit,) = render(load_service(path), tmp_path / "out", "systemd", path)
    text = unit.read_text()
    assert "KillMode=process" in text
    assert f'keep "{str(path).replace("%", "%%")}"' in text
    assert "holds HOOK" in text
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert unit.name not in done.stderr, done.stderr


def test_a_large_log_is_emptied_under_who_writes_it_and_its_last_parts_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("ab", buffering=0) as server:
        for n in range(5):
            server.write(f"part {n}\n".encode() * 10)
            assert not rotate(path, 1000)
            assert rotate(path, 10)
            assert path.stat().st_size == 0
        server.write(b"goes on\n")
    assert path.read_text() == "goes on\n"
    kept = [gzip.decompress((tmp_path / f"stderr.{n}.gz").read_bytes()).split(b"\n")[0] for n in (1, 2, 3)]
    assert kept == [b"part 4", b"part 3", b"part 2"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stderr", "stderr.1.gz", "stderr.2.gz", "stderr.3.gz"]
    assert not rotate(tmp_path / "none", 10)
