"""`ridgeline twin serve`: a server whose timing comes from the twin, for routers, load generators and rehearsals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ridgeline.serving.engines import deployment
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.ports import BOOTSTRAP_PORT, SGLANG_PORT
from ridgeline.serving.twin.server import live, serve
from ridgeline.serving.verbs import options as option


@dataclass(frozen=True)
class TwinArguments(option.EngineArguments):
    """An engine, and where and how the twin of it is served."""

    port: Annotated[int, typer.Option(help="Port of the API.")] = SGLANG_PORT
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    role: Annotated[str, typer.Option(help="both, prefill or decode.")] = "both"
    bootstrap_port: Annotated[int, typer.Option(help="Prefill: where decode servers ask for their KV.")] = (
        BOOTSTRAP_PORT
    )
    api: Annotated[str, typer.Option(help="Whose metrics it exports: sglang or vllm.")] = USUAL_ENGINE
    fault: Annotated[
        list[str] | None, typer.Option(help="hang, spin, slow[:FACTOR], oom, kv-timeout or crash; hang@30: after 30 s.")
    ] = None
    api_key: Annotated[str, typer.Option(envvar="RIDGELINE_API_KEY", help="Required from every request.")] = ""
    served_model_name: Annotated[str, typer.Option(help="The name in /v1/models; default: the model's.")] = ""
    max_queued_requests: Annotated[
        int | None, typer.Option(help="Longest queue; requests beyond it get a 503.", min=0)
    ] = None
    fabric: option.Fabric = None
    speed: Annotated[float, typer.Option(help="How many times faster than real time it runs.")] = 1.0
    calibration: option.CalibrationFile = None


@option.takes(TwinArguments)
def serve_twin(asked: TwinArguments) -> None:
    """Serve tokens as a real engine would, without a GPU: the OpenAI and SGLang APIs with the twin's timing.

    Stops on Ctrl-C or SIGTERM. Meanwhile, POST /fault {"kind": "hang"} injects a fault and {"kind": "none"} clears it.

    Example: ridgeline twin serve --model llama-8b --gpu h200 --tp 1 --port 30000
    """
    names = ("role", "api", "host", "port", "bootstrap_port", "api_key", "speed")
    given = {name: getattr(asked, name) for name in names}
    given |= {"name": asked.served_model_name, "queue_limit": asked.max_queued_requests}
    faults = tuple(live.parse_fault(text) for text in asked.fault or ())
    more = {name: getattr(asked, name) for name in ("fabric", "dtype", "kv_dtype")}
    described = deployment.describe(asked.model, asked.gpu, asked.layout(whole_nodes=False), asked.settings(), **more)
    served = serve.ServedTwin(described, faults=faults, **given)

    def ready(server: serve.TwinServer) -> None:
        part = "" if served.role == "both" else f", {served.role} only"
        print(f"twin of {served.deployment}{part}", flush=True)
        print(f"listens on http://{served.host}:{served.port}", flush=True)

    serve.serve_until_stopped(served, option.fitted(asked.calibration), ready)
