"""What releases of SGLang call the settings that were renamed: the one place that knows when each name came.

Read from `server_args.py` in the wheels of every release from 0.4.6 to 0.5.23. (0, 5) stands for the newest of its
line.
"""

from __future__ import annotations

from collections.abc import Mapping

Release = tuple[int, ...]

# The first release with the new name. Where the old one lives on, it is deprecated.
# --ep-size alone and --moe-a2a-backend, also in 0.4.10.post2; the flags before them raise an error from 0.5.3 on
EXPERTS: Release = (0, 5, 1)
# --cuda-graph-max-bs-decode and --cuda-graph-backend-decode; --cuda-graph-max-bs went with 0.5.20
GRAPHS: Release = (0, 5, 14)
# sglang.benchmark.offline_throughput; sglang.bench_offline_throughput went with 0.5.21
BENCHMARKS: Release = (0, 5, 15)
# --attn-dp-size
ATTENTION_DP: Release = (0, 5, 22)
NO_GRAPH = "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled"


def has(version: Release, since: Release) -> bool:
    return version == (0, 5) or version >= since


def flag_names(version: Release) -> Mapping[str, str]:
    """The words in front of a renamed setting's value; `no_graph` and `a2a` hold their value already."""
    graphs, experts = has(version, GRAPHS), has(version, EXPERTS)
    return {
        "graph_max_bs": "--cuda-graph-max-bs-decode" if graphs else "--cuda-graph-max-bs",
        "no_graph": NO_GRAPH if graphs else "--disable-cuda-graph",
        "attention_dp": "--attn-dp-size" if has(version, ATTENTION_DP) else "--enable-dp-attention --dp-size",
        "ep": "--ep-size" if experts else "--enable-ep-moe --ep-size",
        "a2a": "--moe-a2a-backend deepep" if experts else "--enable-deepep-moe",
    }
