"""`ridgeline twin serve`: a server whose timing comes from the twin, for routers, load generators and rehearsals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.serving.engines.names import USUAL_ENGINE
from ridgeline.serving.ports import BOOTSTRAP_PORT, SGLANG_PORT
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.engines.deployment import Deployment
    from ridgeline.serving.twin.server.serve import ServedTwin


@option.takes(option.EngineArguments)
def serve_twin(
    arguments: option.EngineArguments,
    port: Annotated[int, typer.Option(help="Port of the API.")] = SGLANG_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    role: Annotated[str, typer.Option(help="both, prefill or decode.")] = "both",
    bootstrap_port: Annotated[
        int, typer.Option(help="Prefill: where decode servers ask for their KV.")
    ] = BOOTSTRAP_PORT,
    api: Annotated[str, typer.Option(help="Whose metrics it exports: sglang or vllm.")] = USUAL_ENGINE,
    fault: Annotated[
        list[str] | None, typer.Option(help="hang, spin, slow[:FACTOR], oom, kv-timeout or crash; hang@30: after 30 s.")
    ] = None,
    api_key: Annotated[str, typer.Option(envvar="RIDGELINE_API_KEY", help="Required from every request.")] = "",
    served_model_name: Annotated[str, typer.Option(help="The name in /v1/models; default: the model's.")] = "",
    max_queued_requests: Annotated[
        int | None, typer.Option(help="Longest queue; requests beyond it get a 503.", min=0)
    ] = None,
    fabric: option.Fabric = None,
    speed: Annotated[float, typer.Option(help="How many times faster than real time it runs.")] = 1.0,
    calibration: option.CalibrationFile = None,
) -> None:
    """Serve tokens as a real engine would, without a GPU: the OpenAI and SGLang APIs with the twin's timing.

    Stops on Ctrl-C or SIGTERM. Meanwhile, POST /fault {"kind": "hang"} injects a fault and {"kind": "none"} clears it.

    Example: ridgeline twin serve --model llama-8b --gpu h200 --tp 1 --port 30000
    """
    from ridgeline.serving.twin.server.faults import parse_fault
    from ridgeline.serving.twin.server.serve import ServedTwin

    faults = tuple(parse_fault(text) for text in fault or ())
    where = (role, api, host, port, bootstrap_port, api_key, speed, faults, served_model_name, max_queued_requests)
    _serve(ServedTwin(_described(arguments, fabric), *where), calibration)


def _described(a: option.EngineArguments, fabric: str | None) -> Deployment:
    from ridgeline.serving.engines.deployment import describe

    layout = a.layout(whole_nodes=False)
    return describe(a.model, a.gpu, layout, a.settings(), fabric=fabric, dtype=a.dtype, kv_dtype=a.kv_dtype)


def _serve(served: ServedTwin, calibration: Path | None) -> None:
    from ridgeline.serving.twin.calibration import read_calibration
    from ridgeline.serving.twin.server.serve import TwinServer, serve_until_stopped

    def ready(server: TwinServer) -> None:
        part = "" if served.role == "both" else f", {served.role} only"
        print(f"twin of {served.deployment}{part}", flush=True)
        print(f"listens on http://{served.host}:{served.port}", flush=True)

    serve_until_stopped(served, read_calibration(calibration) if calibration else None, ready)
