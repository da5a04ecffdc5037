"""Servers taken out of a running router, and put back, by its own paths for that."""

from __future__ import annotations

import json
import time
import urllib.error
from typing import Any
from urllib.parse import quote

from ridgeline.errors import SiteError
from ridgeline.serving.service import probe

_POLL_S = 0.2
_ADMIN_S = 60.0
# a router that is still taking a server away under this URL refuses to add it
_STILL_THERE = 409


class RouterAdmin:
    """Actions on the router at `url` with the service's key, which its servers want too."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self._key = url, key

    def workers(self) -> dict[str, dict[str, Any]]:
        """URL -> what the router says of it."""
        found = json.loads(self._ask("/workers"))
        listed: list[dict[str, Any]] = found.get("workers", found) if isinstance(found, dict) else found
        return {str(row["url"]).rstrip("/"): row for row in listed}

    def take_away(self, url: str) -> None:
        """Gone from the list afterwards: no new request goes to it."""
        if (row := self.workers().get(url)) is not None:
            if "id" not in row and row.get("worker_type") in ("prefill", "decode"):
                # vllm-router forgets servers of split roles for good
                raise SiteError(
                    f"the router at {self.url} could not take {url} back once it is taken away; take the service "
                    "down and up instead"
                )
            known = quote(str(row.get("id", row["url"])), safe="")  # vllm-router calls its workers by their URLs
            self._ask(f"/workers/{known}", method="DELETE")
        self._until(url, listed=False)

    def add(self, url: str, role: str, **more: Any) -> None:
        """Listed afterwards, with everything that the router knew of it when it started."""
        if url not in self.workers():
            self._post({**self._worker(url, role), **more})
        self._until(url, listed=True)

    def _worker(self, url: str, role: str) -> dict[str, Any]:
        worker: dict[str, Any] = {"url": url, "worker_type": "regular" if role == "both" else role}
        if self._key:
            worker["api_key"] = self._key  # else the router asks the server without one, and never takes it in
        if role == "prefill" and (port := _bootstrap_port(url, self._key)) is not None:
            worker["bootstrap_port"] = port  # else decode servers wait for KV that nobody sends
        return worker

    def _post(self, worker: dict[str, Any]) -> None:
        deadline = time.monotonic() + _ADMIN_S
        while True:
            try:
                self._ask("/workers", worker)
            except urllib.error.HTTPError as error:
                if error.code != _STILL_THERE or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def _ask(self, path: str, body: object = None, method: str = "") -> bytes:
        try:
            return probe.ask(f"{self.url}{path}", body, key=self._key, method=method)
        except urllib.error.HTTPError as error:
            if error.code in probe.WRONG_KEY:
                raise probe.wrong_key(self.url, str(error.code)) from None
            raise

    def _until(self, url: str, listed: bool) -> None:
        deadline = time.monotonic() + _ADMIN_S
        while (url in self.workers()) is not listed:
            if time.monotonic() > deadline:
                state = "does not list" if listed else "still lists"
                raise SiteError(f"the router at {self.url} {state} {url} after {_ADMIN_S:g} s; look at its log")
            time.sleep(_POLL_S)


def _bootstrap_port(url: str, key: str) -> int | None:
    """What a prefill server says of itself; None where it has no such port, as vLLM's."""
    try:
        said = json.loads(probe.ask(f"{url}/server_info", key=key))
        port = said.get("disaggregation_bootstrap_port")
    except (OSError, ValueError, AttributeError):
        return None
    return port if isinstance(port, int) else None
