"""What serving brings to Ridgeline: engines and the twin as workloads, verbs, findings, figures, metrics."""

from __future__ import annotations

from ridgeline.catalog import Wing

_V = "ridgeline.serving.verbs"
_FINDINGS = "ridgeline.serving.findings"

WING = Wing(
    "serving",
    parts={
        "workloads": {"twin": "ridgeline.serving.workloads.twin.workload:TwinWorkload"},
        "engines": {
            "sglang": "ridgeline.serving.engines.sglang.engine:SGLANG",
            "vllm": "ridgeline.serving.engines.vllm.engine:VLLM",
        },
        "analyzers": {
            "sglang-log": f"{_FINDINGS}.sglang_log:ANALYZER",
            "vllm-log": f"{_FINDINGS}.vllm_log:ANALYZER",
            "nccl-log": f"{_FINDINGS}.nccl_log:ANALYZER",
            "nsys": f"{_FINDINGS}.gpu_profile:NSYS",
            "nsys-sqlite": f"{_FINDINGS}.gpu_profile:SQLITE",
            "torch-trace": f"{_FINDINGS}.gpu_profile:TRACE",
            "dmon": f"{_FINDINGS}.dmon:ANALYZER",
        },
    },
    families={"workloads": "ridgeline.serving.engines.names:FAMILY"},
    verbs={
        "Measure a server": {
            "bench": (f"{_V}.bench:bench", "Load a server: latency, throughput, goodput, and their error."),
            "import": (f"{_V}.import_results:import_results", "Read result files of other load generators."),
            "preflight": (
                f"{_V}.preflight:preflight",
                "Check a node before GPU hours are spent on it; compare nodes.",
            ),
            "make-model": (
                f"{_V}.make_model:make_model",
                "Write a model folder of a given shape.",
            ),
        },
        "Predict": {
            "plan": (f"{_V}.plan:plan", "Rank ways to serve a model on given GPUs within latency limits."),
            "simulate": (
                f"{_V}.simulate:simulate",
                "Predict throughput and latency of a layout under given traffic.",
            ),
            "memory": (f"{_V}.memory:memory", "Check whether a model fits the GPUs, with KV pool and margin."),
            "layouts": (f"{_V}.layouts:layouts", "List the legal layouts of a model on GPUs."),
            "fleet": (f"{_V}.fleet:fleet", "Size a fleet: prefill and decode nodes for a day's tokens."),
            "explain": (f"{_V}.explain:explain", "Show where an iteration's time goes and what bounds it."),
            "calibrate": (f"{_V}.calibrate:calibrate", "Fit the twin to a site from logs or measured rows."),
            "model": (f"{_V}.model:model", "Show what a model costs: parameters, FLOPs, KV; or list models."),
            "hardware": (f"{_V}.hardware:hardware", "List the known GPUs and fabrics, your own included."),
        },
        "Serve": {
            "deploy": (
                f"{_V}.deploy:ACTIONS",
                "Start, inspect, restart and stop a service from a deployment file.",
            ),
            "keep": (f"{_V}.keep:keep", "Watch a service by its tokens; restart servers that die or hang."),
            "rehearse": (
                f"{_V}.rehearse:rehearse",
                "Try router policies and the loss of a server on twin servers.",
            ),
            "serve-twin": (f"{_V}.serve_twin:serve_twin", "Serve tokens with the twin's timing, to try routers."),
        },
    },
    typed_first={
        **dict.fromkeys(("find-goodput", "goodput", "saturate"), ("bench URL --find-goodput --slo ttft_p95_ms=2000",)),
        **dict.fromkeys(("benchmark", "load", "loadtest"), ("bench URL",)),
        **dict.fromkeys(("serve", "launch"), ("deploy up SERVICE.yaml", "serve-twin")),
        **dict.fromkeys(("run", "start"), ("bench URL", "deploy up SERVICE.yaml")),
        "profile": ("explain",),
        "sweep": ("bench URL --sweep GRID",),
        **dict.fromkeys(("predict", "estimate", "twin"), ("simulate", "plan")),
    },
    functions={name: f"ridgeline.serving.api:{name}" for name in ("bench", "find_goodput", "plan", "simulate")},
    files={"deploy": "ridgeline.serving.service.form:ServiceForm"},
    from_answer={"deploy": "ridgeline.serving.service.from_results:text_of_answer"},
    metrics="ridgeline.serving.metrics:METRICS",
    sections={"serving": ("Serving", "ridgeline.serving.figures.section:section")},
    notes="ridgeline.serving.figures.section:notes",
)
