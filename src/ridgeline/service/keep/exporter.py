"""`keep --metrics PORT`: what it sees and does, as Prometheus reads it, on loopback."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable

from ridgeline.errors import SiteError
from ridgeline.service.keep.canary import OUTCOMES
from ridgeline.service.keep.keeper import Keeper
from ridgeline.service.keep.seen import MEMBER_STATES

_STATUSES = ("2xx", "4xx", "5xx")


def _metrics_text(keeper: Keeper) -> str:
    """Of its last poll; the journal is not read again for it."""
    own = f'service="{keeper.operator.service.name}"'
    lines = [
        "# TYPE ridgeline_keep_polls_total counter",
        f"ridgeline_keep_polls_total{{{own}}} {keeper.counts['polls']}",
        "# TYPE ridgeline_keep_events_total counter",
    ]
    kinds = sorted(kind for kind in list(keeper.counts) if kind != "polls")
    lines += [f'ridgeline_keep_events_total{{{own},kind="{kind}"}} {keeper.counts[kind]}' for kind in kinds]
    seen = keeper.seen.states
    for name, about, value in (
        ("ridgeline_member_starts_total", "counter", lambda row: row.starts),
        ("ridgeline_member_stalled", "gauge", lambda row: int(row.stalled)),
        ("ridgeline_member_next_try_seconds", "gauge", lambda row: round(row.next_try_s)),
    ):
        lines.append(f"# TYPE {name} {about}")
        lines += [f'{name}{{{own},member="{row.member}"}} {value(row)}' for row in seen]
    lines.append("# TYPE ridgeline_member_state gauge")
    for row in seen:
        labels = f'{own},member="{row.member}"'
        lines += [f'ridgeline_member_state{{{labels},state="{s}"}} {int(s == row.state)}' for s in MEMBER_STATES]
    # by what came of each: the share that is not answered is the server's error rate, with and without users
    lines.append("# TYPE ridgeline_member_canaries_total counter")
    for row in seen:
        labels = f'{own},member="{row.member}"'
        lines += [f'ridgeline_member_canaries_total{{{labels},outcome="{o}"}} {row.canaries[o]}' for o in OUTCOMES]
    lines.append("# TYPE ridgeline_member_requests_total counter")
    for row in seen:
        labels = f'{own},member="{row.member}"'
        lines += [f'ridgeline_member_requests_total{{{labels},status="{s}"}} {row.requests[s]}' for s in _STATUSES]
    return "\n".join([*lines, *_scale_lines(keeper, own), ""])


def _scale_lines(keeper: Keeper, own: str) -> list[str]:
    lines = []
    if keeper.scaled:
        lines.append("# TYPE ridgeline_scale_servers gauge")
    for row in keeper.scaled:
        labels = f'{own},role="{row.role}"'
        counted = {"serving": row.serving, "starting": row.starting, "leaving": row.leaving}
        lines += [f'ridgeline_scale_servers{{{labels},state="{state}"}} {n}' for state, n in counted.items()]
    for name in ("least", "most") if keeper.scaled else ():
        lines.append(f"# TYPE ridgeline_scale_{name} gauge")
        lines += [f'ridgeline_scale_{name}{{{own},role="{r.role}"}} {getattr(r, name)}' for r in keeper.scaled]
    return lines


def serve_metrics(keeper: Keeper, port: int) -> http.server.ThreadingHTTPServer:
    return serve_page(lambda: _metrics_text(keeper), port)


def serve_page(text: Callable[[], str], port: int, host: str = "127.0.0.1") -> http.server.ThreadingHTTPServer:
    """In a thread of its own, until `shutdown`. SiteError where the port is taken."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = text().encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer((host, port), Page)
    except OSError as error:
        raise SiteError(f"{host}:{port}: {error.strerror}; choose another port for --metrics") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
