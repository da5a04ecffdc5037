"""A server's page of metrics, looked at again and again and kept in a file with the times."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.load.discover import asked, discover
from ridgeline.serving.load.wire.endpoint import parse_endpoint

_PAGE = "/metrics"


def scrape(url: str, file: Path, *, every_s: float, lasts_s: float, key: str | None = None) -> int:
    """Writes pages as they come and returns how many there were; Ctrl-C ends it early. SiteError: no page at all.

    A time at which the server gave none is kept too: its page is empty.
    """
    if lasts_s < every_s:
        raise InputError(f"one page in {lasts_s:g} s: counters are compared between two; scrape for longer")
    endpoint = parse_endpoint(url.rstrip("/").removesuffix(_PAGE), key=key)
    timeout_s = min(10.0, every_s)
    server = discover(endpoint, None, timeout_s)
    if not asked(endpoint, server.address, _PAGE, timeout_s):
        why = server.note or "nothing there, or not for you (--key)"
        raise SiteError(
            f"{endpoint.url.removesuffix(endpoint.path)}{_PAGE}: no page ({why}); name a server that is up "
            "(SGLang with --enable-metrics), not a router before it"
        )
    pages, due_s = 0, time.monotonic()
    with file.open("w", encoding="utf-8") as out:
        out.write(f"# server {json.dumps(dict(server.settings))}\n")
        try:
            for _ in range(int(lasts_s / every_s) + 1):
                time.sleep(max(0.0, due_s - time.monotonic()))
                # looks that were missed, on a machine that stood still, are not made up for all at once
                due_s = max(due_s, time.monotonic() - every_s / 2) + every_s
                at = datetime.now(UTC).isoformat(timespec="milliseconds")
                page = asked(endpoint, server.address, _PAGE, timeout_s).decode(errors="replace")
                pages += bool(page)
                out.write(f"# scraped {at}\n{page.rstrip()}\n")
                out.flush()
        except KeyboardInterrupt:
            pass
    return pages
