"""`twin calibrate --metrics`: the server itself is asked, its pages are kept, and what is wrong is said at once."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ridgeline.cli.main import main
from ridgeline.errors import InputError, SiteError
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.load.scrape import scrape
from ridgeline.serving.twin.metrics_pages import is_pages, read_pages

MODELS = {"data": [{"id": "llama-8b", "owned_by": "sglang"}]}
INFO = {"version": "0.5.15", "model_path": "llama-8b", "tp_size": 2, "max_running_requests": 256}
Served = Callable[[dict[str, str]], str]


@pytest.fixture
def serving() -> Iterator[Served]:
    """A server whose paths answer with these texts; any other path is not there."""
    servers = []

    def serve(texts: dict[str, str]) -> str:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = texts.get(self.path, "").encode()
                self.send_response(200 if body else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Page))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_pages_are_kept_with_their_times_and_what_the_server_said(serving: Served, tmp_path: Path):
    texts = {"/metrics": "sglang:num_running_reqs 3\n", "/v1/models": json.dumps(MODELS)}
    url = serving(texts | {path: json.dumps(INFO) for path in ("/get_server_info", "/server_info")})
    file = tmp_path / "site.metrics"
    assert scrape(f"{url}/metrics", file, every_s=0.05, lasts_s=0.1) == 3
    assert is_pages(file)
    kept = read_pages(file)
    assert [page.figures for page in kept.pages] == [{("sglang:num_running_reqs", -1.0): 3.0}] * 3
    assert kept.pages[0].at_s < kept.pages[1].at_s < kept.pages[2].at_s
    assert (kept.server["engine"], kept.server["version"], kept.server["tp"]) == ("sglang", "0.5.15", 2)


def test_a_server_without_the_page_is_named_before_anything_is_waited_for(serving: Served, tmp_path: Path):
    with pytest.raises(SiteError, match=r"/metrics: no page .*--enable-metrics"):
        scrape(serving({"/v1/models": json.dumps(MODELS)}), tmp_path / "x", every_s=600, lasts_s=600)
    assert not (tmp_path / "x").exists()


def test_nobody_there_is_named(tmp_path: Path):
    with pytest.raises(SiteError, match="refuses connections"):
        scrape("http://127.0.0.1:1", tmp_path / "x", every_s=600, lasts_s=600)


def test_one_look_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="compared between two"):
        scrape("http://127.0.0.1:1", tmp_path / "x", every_s=60, lasts_s=30)


def test_an_idle_server_is_told_from_the_verb_and_its_pages_stay(
    serving: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    names = engine_named("sglang").metrics
    page = "".join(f"{name}_{part} 0\n" for name in (names.ttft, names.itl) for part in ("sum", "count"))
    url = serving({"/metrics": page, "/v1/models": json.dumps(MODELS)})
    words = ["twin", "calibrate", "--metrics", url, "--every", "0.05", "--for", "0.1s", "--gpu", "h200"]
    monkeypatch.setattr(sys, "argv", ["ridgeline", *words, "--out", str(tmp_path / "site.json")])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "without load" in said and "ridgeline bench" in said
    (kept,) = tmp_path.glob("site-*.metrics")
    assert len(read_pages(kept).pages) == 3
    assert not (tmp_path / "site.json").exists()
