"""`service keep --metrics PORT`: what it sees and does, as Prometheus reads it, on loopback."""

from __future__ import annotations

import http.server
import threading

from ridgeline.errors import SiteError
from ridgeline.serving.service.keep.canary import OUTCOMES
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.keep.seen import MEMBER_STATES

_STATUSES = ("2xx", "4xx", "5xx")


def _metrics_text(keeper: Keeper) -> str:
    """Of its last poll; the journal is not read again for it."""
    seen, scaled, labels = keeper.seen.states, keeper.scaled, f'service="{keeper.operator.service.name}"'
    kinds = sorted(kind for kind in list(keeper.counts) if kind != "polls")
    # by what came of each canary: the share that is not answered is the server's error rate, with and without users
    families: dict[str, list[tuple[dict[str, str], float]]] = {
        "keep_polls_total": [({}, keeper.counts["polls"])],
        "keep_events_total": [({"kind": kind}, keeper.counts[kind]) for kind in kinds],
        "member_starts_total": [({"member": row.member}, row.starts) for row in seen],
        "member_stalled": [({"member": row.member}, int(row.stalled)) for row in seen],
        "member_next_try_seconds": [({"member": row.member}, round(row.next_try_s)) for row in seen],
        "member_state": [
            ({"member": row.member, "state": s}, int(s == row.state)) for row in seen for s in MEMBER_STATES
        ],
        "member_canaries_total": [
            ({"member": row.member, "outcome": o}, row.canaries[o]) for row in seen for o in OUTCOMES
        ],
        "member_requests_total": [
            ({"member": row.member, "status": s}, row.requests[s]) for row in seen for s in _STATUSES
        ],
        "scale_servers": [
            ({"role": row.role, "state": state}, getattr(row, state))
            for row in scaled
            for state in ("serving", "starting", "leaving")
        ],
        "scale_least": [({"role": row.role}, row.least) for row in scaled],
        "scale_most": [({"role": row.role}, row.most) for row in scaled],
    }
    lines = []
    for name, rows in families.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE ridgeline_{name} {kind}"] if rows or not name.startswith("scale") else []
        for own, value in rows:
            more = "".join(f',{key}="{text}"' for key, text in own.items())
            lines.append(f"ridgeline_{name}{{{labels}{more}}} {value}")
    return "\n".join([*lines, ""])


def serve_metrics(keeper: Keeper, port: int) -> http.server.ThreadingHTTPServer:
    """In a thread of its own, until `shutdown`. SiteError where the port is taken."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = _metrics_text(keeper).encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    except OSError as error:
        raise SiteError(f"127.0.0.1:{port}: {error.strerror}; choose another port for --metrics") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
