"""What routers learn of a twin server by asking it: which engine it is, and where its KV is fetched."""

from __future__ import annotations

from tests.twin.server.test_server import free_port, serving


def test_a_prefill_server_says_where_decode_servers_meet_it() -> None:
    port = free_port()
    with serving(role="prefill", bootstrap_port=port) as prefill:
        assert prefill.json("/server_info")["disaggregation_bootstrap_port"] == port
    with serving() as both:
        assert both.json("/server_info")["disaggregation_bootstrap_port"] is None


def test_only_a_vllm_answers_with_its_version() -> None:
    """smg takes whoever answers /version for a vLLM, and pairs its roles in vLLM's way."""
    with serving(api="vllm") as vllm:
        assert vllm.json("/version")["version"]
    with serving(api="sglang") as sglang:
        assert sglang.call("GET", "/version")[0] == 404
