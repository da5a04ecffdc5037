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
        "recipes": dict.fromkeys(("sglang", "vllm"), "ridgeline.serving.planner.recipe:write"),
        "analyzers": {
            "sglang-log": f"{_FINDINGS}.sglang_log:ANALYZER",
            "vllm-log": f"{_FINDINGS}.vllm_log:ANALYZER",
            "nccl-log": f"{_FINDINGS}.nccl_log:ANALYZER",
            "nsys": f"{_FINDINGS}.gpu_profile:NSYS",
            "torch-trace": f"{_FINDINGS}.gpu_profile:TRACE",
        },
    },
    families={"workloads": "ridgeline.serving.engines.releases:FAMILY"},
    verbs={
        "bench": (f"{_V}.bench:bench", "Load a server: latency, throughput, goodput, and their error."),
        "twin simulate": (f"{_V}.simulate:simulate", "Predict throughput and latency of a layout under given traffic."),
        "twin explain": (f"{_V}.explain:explain", "Show where an iteration's time goes and what bounds it."),
        "twin calibrate": (f"{_V}.calibrate:calibrate", "Fit the twin to a site from logs or measured rows."),
        "twin import": (f"{_V}.import_results:import_results", "Read result files of other load generators."),
        "twin sessions": (f"{_V}.sessions:sessions", "Show the sessions of a trace, beside others drawn like them."),
        "twin serve": (f"{_V}.serve_twin:serve_twin", "Serve tokens with the twin's timing, to try routers."),
        "plan": (f"{_V}.plan:plan", "Rank ways to serve a model on given GPUs within latency limits."),
        "plan fleet": (f"{_V}.memory:fleet", "Size a fleet: prefill and decode nodes for a day's tokens."),
        "plan sessions": (
            f"{_V}.plan_sessions:sessions",
            "Find how many sessions a layout holds, and what ends it.",
        ),
        "plan memory": (f"{_V}.memory:memory", "Check whether a model fits the GPUs, with KV pool and margin."),
        "plan layouts": (f"{_V}.memory:layouts", "List the legal layouts of a model on GPUs."),
        "plan hardware": (f"{_V}.memory:hardware", "List the known GPUs and fabrics, your own included."),
        "model show": (f"{_V}.model:show", "Show what a model costs: parameters, FLOPs, KV."),
        "model list": (f"{_V}.model:list_models", "List the known models with their sizes."),
        "model make": (f"{_V}.model:make_model", "Write a model folder of a given shape, with no download."),
        "service check": (f"{_V}.deploy:check", "Validate a deployment file and print what it would run."),
        "service render": (f"{_V}.deploy:render", "Write the scripts or manifests that start it; run nothing."),
        "service up": (f"{_V}.deploy:up", "Start the servers, then the router; send a real request through it."),
        "service status": (f"{_V}.deploy:status", "Show the state of servers and router, and edits not yet applied."),
        "service drain": (f"{_V}.deploy:drain", "Take a server out of the router; it finishes the requests it has."),
        "service undrain": (f"{_V}.deploy:undrain", "Put a drained server back into the router."),
        "service restart": (f"{_V}.deploy:restart", "Restart one server, or all in turn, as the file has them now."),
        "service down": (f"{_V}.deploy:down", "Stop the router and all servers of this service, and nothing else."),
        "service keep": (f"{_V}.keep:keep", "Watch a service by its tokens; restart servers that die or hang."),
        "service rehearse": (f"{_V}.rehearse:rehearse", "Try router policies and the loss of a server on twins."),
        "site preflight": (f"{_V}.preflight:preflight", "Check a node before GPU hours are spent; compare nodes."),
    },
    groups={
        "twin": "The simulated cluster: predict, explain, fit it to a site, serve.",
        "plan": "Rank ways to serve a model; what fits, and how many nodes.",
        "model": "What a model costs, the models known, model folders.",
        "service": "Servers and their router: start, watch, restart, rehearse.",
    },
    former={
        **{verb: f"twin {verb}" for verb in ("simulate", "explain", "calibrate", "import")},
        **{verb: f"plan {verb}" for verb in ("memory", "layouts", "fleet", "hardware")},
        **{verb: f"service {verb}" for verb in ("keep", "rehearse")},
        "model": "model show",
        "serve-twin": "twin serve",
        "make-model": "model make",
        "deploy": "service",
        "preflight": "site preflight",
    },
    typed_first={
        **dict.fromkeys(("find-goodput", "goodput", "saturate"), ("bench URL --find-goodput --slo ttft_p95_ms=2000",)),
        **dict.fromkeys(("benchmark", "load", "loadtest"), ("bench URL",)),
        **dict.fromkeys(("serve", "launch"), ("service up SERVICE.yaml", "twin serve")),
        **dict.fromkeys(("run", "start"), ("bench URL", "service up SERVICE.yaml")),
        "profile": ("twin explain",),
        **dict.fromkeys(("predict", "estimate"), ("twin simulate", "plan")),
    },
    functions={
        name: f"ridgeline.serving.api:{name}" for name in ("bench", "find_goodput", "plan", "plan_sessions", "simulate")
    },
    tools={name: f"ridgeline.serving.verbs.tools:{name}" for name in ("simulate", "plan", "bench")},
    files={"deploy": "ridgeline.serving.service.service:ServiceForm"},
    from_answer={"deploy": "ridgeline.serving.service.from_results:text_of_answer"},
    metrics="ridgeline.serving.metrics:METRICS",
    sections={"serving": ("Serving", "ridgeline.serving.figures.section:section")},
    notes="ridgeline.serving.figures.section:notes",
)
