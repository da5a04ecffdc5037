"""What a site's hours cost, and what that makes of a run's throughput."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.records.run import Run

COST_METRIC = "dollars_per_million_tokens"
TOKEN_RATES = ("total_tok_s", "output_tok_s")  # the first that a run measured counts


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for an hour of a node, or of a GPU; None where it is not known."""

    node_hour: float | None = None
    gpu_hour: float | None = None

    def hourly(self, nodes: int, gpus_per_node: int) -> float | None:
        """What a job costs an hour; a price of nodes counts before one of GPUs."""
        if self.node_hour is not None:
            return self.node_hour * nodes
        if self.gpu_hour is not None and gpus_per_node:
            return self.gpu_hour * nodes * gpus_per_node
        return None


NO_PRICES = Prices()


def dollars_per_million_tokens(run: Run, prices: Prices, gpus_per_node: int) -> float | None:
    """At this run's throughput; None where it measured none, or nothing is known to cost anything."""
    hourly = prices.hourly(run.resources.nodes, run.resources.gpus or gpus_per_node)
    rate = next((run.metrics[name] for name in TOKEN_RATES if run.metrics.get(name, 0.0) > 0), None)
    return None if hourly is None or rate is None else hourly / (rate * 3600.0) * 1e6
