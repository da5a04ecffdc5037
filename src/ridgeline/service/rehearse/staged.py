"""A service of twins that stays up while routers before it come and go: a rehearsal's time is for load, not starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ridgeline.service import probe
from ridgeline.service.operate import Operator
from ridgeline.service.service import RouterChoice, Service

READY_S = 180.0
# Nobody waits for answers that were given up: unless told, these routers wait for minutes, until they are killed.
_END_AT_ONCE = ("--shutdown-grace-period-secs", "0")
_AT_ONCE = {"smg": _END_AT_ONCE, "sglang-router": _END_AT_ONCE}


class StagedService:
    """`twins` as `as_twins` made them. Servers that were lost in one run are started again for the next."""

    def __init__(self, twins: Service, root: Path) -> None:
        self._twins, self._root = twins, root
        self._before: RouterChoice | None = None

    def operator(self, router: RouterChoice) -> Operator:
        assert self._twins.router is not None
        own = self._twins.router  # its place, whatever the choice says
        words = (*router.arguments, *_AT_ONCE.get(router.kind, ()))
        return Operator(replace(self._twins, router=replace(router, port=own.port, arguments=words)), self._root)

    def behind(self, router: RouterChoice) -> tuple[Operator, str]:
        """Up behind such a router, with its URL, every prefix forgotten. SiteError where the router does not start."""
        operator = self.operator(router)
        if router != self._before and operator.router is not None:
            self._before = None
            operator.stop(operator.router)
        url = operator.up(READY_S)
        self._before = router
        for server in operator.servers:
            with contextlib.suppress(OSError):
                probe.ask(f"{operator.folder.url(server)}/flush_cache", {}, key=operator.key)
        return operator, url

    def servers_were_lost(self) -> None:
        """The router may have been told to do without them: the next run gets a new one, which knows all of them."""
        self._before = None

    def down(self) -> None:
        Operator(self._twins, self._root).down()


@contextlib.contextmanager
def staged(twins: Service, root: Path) -> Iterator[StagedService]:
    """Nothing of it runs afterwards."""
    stage = StagedService(twins, root)
    try:
        yield stage
    finally:
        stage.down()
