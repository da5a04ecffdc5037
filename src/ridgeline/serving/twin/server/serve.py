"""`ridgeline twin serve`: puts engines, role and API together, listens, and ends on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ridgeline import catalog
from ridgeline.errors import InputError, SiteError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.failures import OUT_OF_MEMORY
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.engines.settings import values_of
from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_LIMIT_S, BOOTSTRAP_VARIABLE
from ridgeline.serving.ports import BOOTSTRAP_PORT, SGLANG_PORT
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.disaggregation import DecodeEngine, KvTransfer, PrefillEngine
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.server.api import Api, ServerFacts
from ridgeline.serving.twin.server.http import HttpConnection
from ridgeline.serving.twin.server.live import OOM_SHARE, Clock, Fault, LiveEngine, parse_fault
from ridgeline.serving.twin.server.roles import ColocatedEngines, DecodeRole, PrefillRole, Role
from ridgeline.serving.twin.simulate import put_in_front, step_time

ROLES = ("both", "prefill", "decode")
_DIED = 1
_SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # it ends with its server
_OOM_LINE = f"{OUT_OF_MEMORY} (pretended by the twin's fault `oom`)"


@dataclass(frozen=True)
class ServedTwin:
    """What to serve and where. `speed` above 1 makes the twin's time pass faster than the wall clock's."""

    deployment: Deployment
    role: str = "both"
    api: str = USUAL_ENGINE
    host: str = "127.0.0.1"
    port: int = SGLANG_PORT
    bootstrap_port: int = BOOTSTRAP_PORT
    api_key: str = ""
    speed: float = 1.0
    faults: tuple[Fault, ...] = ()
    name: str = ""  # the served model's; default: the model's own
    queue_limit: int | None = None  # requests that may wait; with split roles SGLang has no such limit

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(f"role {self.role!r} is not known; use one of {', '.join(ROLES)}")
        if self.api not in (known := catalog.names("engines")):
            raise InputError(f"api {self.api!r} is not known; use {' or '.join(known)}")
        if self.deployment.layout.disaggregated:
            raise InputError(
                "a server has one role; start one `ridgeline twin serve` with --role prefill and one with --role decode"
            )
        if self.role != "both" and self.deployment.layout.dp > 1:
            raise InputError(f"--dp {self.deployment.layout.dp} with --role {self.role}: start a server for each copy")
        if not 0.01 <= self.speed <= 1000:
            raise InputError(f"speed {self.speed:g} is outside 0.01 to 1000")


def _started_with(deployment: Deployment) -> dict[str, Value]:
    """Arguments as the engine's own page repeats them; what was left to the engine is not among them."""
    settings = deployment.settings
    if not engine_named(settings.engine).repeats_arguments:
        return {}
    return engine_flags(settings.engine).fields(values_of(deployment.layout, settings), settings.version)


class TwinServer:
    """The parts of one server, before it listens."""

    def __init__(self, served: ServedTwin, calibration: Calibration | None = None) -> None:
        self.served, deployment = served, served.deployment
        lay, calibration = deployment.layout, calibration or Calibration()
        times, plan, pool = step_time(deployment, lay, served.role, calibration)
        kinds: dict[str, type[Engine]] = {"prefill": PrefillEngine, "decode": DecodeEngine}
        make = kinds.get(served.role, Engine)
        self.clock = Clock(served.speed)
        engines = [LiveEngine(make(f"engine{n}", times, pool), self.clock) for n in range(lay.dp)]
        self.role = self._role(engines)
        facts = ServerFacts(
            model=served.name or deployment.model.name,
            api=served.api,
            engine=deployment.settings.engine,
            version=".".join(map(str, deployment.settings.version)),
            role={"both": "null"}.get(served.role, served.role),
            tp=lay.tp,
            dp=lay.attn_dp,
            pool_tokens=pool * lay.dp,
            rank_pool_tokens=plan.kv_tokens_per_rank,
            context_tokens=deployment.model.context_tokens,
            running_limit=times.applied.running_limit,
            radix_cache=times.applied.radix_cache,
            api_key=served.api_key,
            bootstrap_port=served.bootstrap_port if served.role == "prefill" else None,
            queue_limit=served.queue_limit,
            started_with=_started_with(deployment),
        )
        front_end = put_in_front([live.engine for live in engines], deployment, calibration)
        self.api = Api(facts, self.role, self.clock, self.inject, front_end)
        self._oom_armed = False
        self._spinner: subprocess.Popen[bytes] | None = None

    def _role(self, engines: list[LiveEngine]) -> Role:
        served, deployment = self.served, self.served.deployment
        if served.role == "both":
            return ColocatedEngines(engines, deployment.routing)
        cluster = deployment.cluster
        transfer = KvTransfer.between(
            deployment.model, deployment.layout, cluster.fabric, cluster.node.gpus, deployment.settings.page_size
        )
        if served.role == "prefill":
            limit_s = float(os.environ.get(BOOTSTRAP_VARIABLE, BOOTSTRAP_LIMIT_S))
            return PrefillRole(engines[0], transfer, (served.host, served.bootstrap_port), limit_s)
        return DecodeRole(engines[0], transfer)

    async def listen(self) -> list[asyncio.Server]:
        """Raises SiteError where a port is taken."""
        loop, served = asyncio.get_running_loop(), self.served
        opened: list[asyncio.Server] = []
        port = served.port
        try:
            if isinstance(self.role, PrefillRole):
                port = served.bootstrap_port
                opened.append(await asyncio.start_server(self.role.rooms.connected, served.host, port))
                port = served.port
            connection = partial(HttpConnection, self.api.handle)
            opened.append(await loop.create_server(connection, served.host, port, backlog=1024))
        except OSError as error:
            for server in opened:
                server.close()
            raise SiteError(f"{served.host}:{port}: {error.strerror}; choose another port") from error
        return opened

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serves until its task is cancelled."""
        servers = await self.listen()
        loop = asyncio.get_running_loop()
        for fault in self.served.faults:
            loop.call_later(fault.at_s, self._strike, fault)
        tasks = [asyncio.create_task(live.run()) for live in self.role.engines]
        tasks.append(asyncio.create_task(self._ticks()))
        ready()
        try:
            await asyncio.gather(*tasks)  # ends only with an error or a cancel
        finally:
            for task in tasks:
                task.cancel()
            for server in servers:
                server.close()

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.api.tick()
            if self._oom_armed and self.api.gauges().kv_share >= OOM_SHARE:
                self._die(_OOM_LINE)

    def inject(self, text: str) -> None:
        """A fault now, as `parse_fault` reads it; `none` ends hanging, slowness, lost KV and a waiting OOM."""
        if text == "none":
            self._oom_armed = False
            self._set(hung=False, slowness=1.0, kv_lost=False)
            if self._spinner is not None:
                self._spinner.kill()
                self._spinner = None
        else:
            self._strike(parse_fault(text))

    def _strike(self, fault: Fault) -> None:
        _say(f"fault: {fault.kind}")
        if fault.kind == "crash":
            self._die("crash (pretended)")
        elif fault.kind == "oom":
            self._oom_armed = True
        elif fault.kind in ("hang", "spin"):
            self._set(hung=True)
            if fault.kind == "spin" and self._spinner is None:
                self._spinner = subprocess.Popen([sys.executable, "-c", _SPIN])
        elif fault.kind == "slow":
            self._set(slowness=fault.factor)
        elif isinstance(self.role, ColocatedEngines):
            raise InputError("fault kv-timeout needs --role prefill or decode: nothing is sent elsewhere")
        else:
            self._set(kv_lost=True)

    def _set(self, hung: bool | None = None, slowness: float | None = None, kv_lost: bool | None = None) -> None:
        for live in self.role.engines:
            live.hung = live.hung if hung is None else hung
            live.slowness = live.slowness if slowness is None else slowness
            live.wake()
        if hung is not None:
            self.api.freeze(hung)
        if kv_lost is not None and not isinstance(self.role, ColocatedEngines):
            self.role.kv_lost = kv_lost

    def _die(self, last_words: str) -> None:
        _say(last_words)
        os._exit(_DIED)


def _say(line: str) -> None:
    """Into the server's log."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def serve_until_stopped(
    served: ServedTwin, calibration: Calibration | None, ready: Callable[[TwinServer], None]
) -> None:
    """Serves until SIGTERM or Ctrl-C."""

    async def main() -> None:
        server = TwinServer(served, calibration)
        task = asyncio.create_task(server.run(lambda: ready(server)))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
