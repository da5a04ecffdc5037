"""Small deployments and traffic for the twin's tests, and Hypothesis strategies over them."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, parse_layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import ClosedLoop, Fixed, LogNormal, OpenLoop, Traffic


def llama(tp: int = 1, **settings: Any) -> Deployment:
    shape = Layout(tp, gpus_per_node=tp)
    return Deployment(load_model("llama-8b"), make_cluster("h200", 1, tp), shape, EngineSettings(**settings))


def r1(gpu: str = "h200", **layout: Any) -> Deployment:
    shape = Layout(**{"tp": 16, "nodes": 2, **layout})
    chosen = EngineSettings(mem_fraction=0.88)
    return Deployment(load_model("deepseek-r1"), make_cluster(gpu, shape.nodes, 8), shape, chosen)


def split(words: str = "P2D2", rank_limit: int | None = None, **settings: Any) -> Deployment:
    """`rank_limit`: requests that each attention-DP rank may run, in both roles."""
    model = load_model("deepseek-v3")
    layout = parse_layout(words, model)
    chosen = EngineSettings(**{"mem_fraction": 0.81, **settings})
    return limited(Deployment(model, make_cluster("h800", layout.nodes, 8), layout, chosen), rank_limit)


def limited(of: Deployment, rank_limit: int | None) -> Deployment:
    if rank_limit is None:
        return of
    own: dict[str, Any] = {
        f"{role}_settings": replace(
            of.role_settings(role), max_running_requests=rank_limit * getattr(of.layout, role).attn_dp
        )
        for role in ("prefill", "decode")
    }
    return replace(of, **own)


lengths = st.one_of(
    st.builds(Fixed, st.integers(1, 3000), st.integers(1, 300)),
    st.builds(LogNormal, st.floats(10, 2000), st.floats(2, 300), st.floats(0, 1.2), st.floats(0, 1.2),
              st.just(4000), st.just(1000)),
)  # fmt: skip
paces = st.one_of(
    st.none(),
    st.builds(ClosedLoop, st.integers(1, 40)),
    st.builds(OpenLoop, st.floats(0.5, 500), st.sampled_from([0.0, 1.0, 4.0])),
)


@st.composite
def traffic(draw: st.DrawFn, most: int = 120) -> Traffic:
    pace = draw(paces)
    count, seed = draw(st.integers(1, most)), draw(st.integers(0, 5))
    return Traffic(draw(lengths), count, seed=seed) if pace is None else Traffic(draw(lengths), count, pace, seed)


@st.composite
def open_loops(draw: st.DrawFn, most: int = 120) -> Traffic:
    pace = draw(st.builds(OpenLoop, st.floats(0.5, 500), st.sampled_from([0.0, 1.0, 4.0])))
    return Traffic(draw(lengths), draw(st.integers(1, most)), pace, draw(st.integers(0, 5)))


settings: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    max_running_requests=st.sampled_from([None, 1, 7, 64]),
    chunked_prefill_size=st.sampled_from([None, 64, 1000, 8192]),
    cuda_graph_max_bs=st.sampled_from([None, 0, 16]),
    schedule_conservativeness=st.sampled_from([0.1, 1.0]),
)
