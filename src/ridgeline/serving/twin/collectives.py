"""What it costs ranks to talk: all-reduce, all-gather, all-to-all and point to point, within and between nodes.

Every cost is a delay plus bytes over a rate. Rates and delays are what NCCL and DeepEP reach on healthy machines; the
calibrated network factor multiplies all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ridgeline.serving.hardware.cluster import Cluster
from ridgeline.serving.twin.rates import Reduction, kernels_of

# NCCL's large-message bus bandwidth over two nodes as a share of the link: 171 of 200 GB/s on H800. Inside a node delay
# and share are measured ones (rates.yaml); an all-gather by NCCL takes twice the delay of an engine's own all-reduce.
BUS_SHARE_BETWEEN = 0.85
GATHER_DELAYS = 2.0
# NCCL's launch and protocol cost between nodes: about 65 us for a few kilobytes on 16 GPUs in a busy engine, 90 us more
# once the message leaves the low-latency protocols.
DELAY_BETWEEN_S = 55e-6
PROTOCOL_CHANGE_S = 90e-6
_PROTOCOL_CHANGE_BYTES = 4e6
# SGLang hands a micro-batch over with pickled metadata through a CPU channel before the tensors follow.
HAND_OVER_INSIDE_S = 0.5e-3
_HAND_OVER_BETWEEN_S = 3.0e-3
# DeepEP: share of the port's rate, and the fixed part of one low-latency dispatch or combine.
_ALL_TO_ALL_SHARE = 0.9
ALL_TO_ALL_DELAY_S = 60e-6
# DeepEP's normal mode counts tokens on the host before it sends: a round trip to the CPU in every dispatch.
ALL_TO_ALL_COUNT_S = 250e-6


@dataclass(frozen=True)
class Network:
    """The wires under one engine. `factor` above 1 is a better network than the priors say."""

    cluster: Cluster
    factor: float = 1.0
    kernel_set: str = ""

    @cached_property
    def _reduction(self) -> Reduction:
        return kernels_of(self.cluster.gpu, self.kernel_set).reduction

    def nodes_of(self, ranks: int) -> int:
        """Nodes, or whole NVLink domains where a switch joins more GPUs than a node has."""
        return -(-ranks // max(self.cluster.node.gpus, self.cluster.gpu.domain))

    def _bus_bytes_s(self, ranks: int) -> float:
        link = self.cluster.gpu.link.bytes_s
        if self.nodes_of(ranks) == 1:
            return float(link * self._reduction.bus_share(ranks) * self.factor)
        rails = self.cluster.fabric.rails * self.cluster.fabric.port.bytes_s
        return min(link, rails) * BUS_SHARE_BETWEEN * self.factor

    def _delay_s(self, ranks: int, nbytes: float, inside_s: float) -> float:
        if self.nodes_of(ranks) == 1:
            return inside_s / self.factor
        crossing = 2 * self.cluster.fabric.port.latency_s
        protocol = PROTOCOL_CHANGE_S * min(1.0, nbytes / _PROTOCOL_CHANGE_BYTES)
        return (DELAY_BETWEEN_S + crossing + protocol) / self.factor

    def all_reduce_s(self, nbytes: float, ranks: int) -> float:
        """Every rank ends with the sum of all ranks' `nbytes`: 2 (n - 1) / n of them cross the slowest wire."""
        if ranks <= 1 or nbytes <= 0:
            return 0.0
        # one switch; beyond what was measured it is as far to the eighth GPU as to the last
        inside_s = float(self._reduction.delay(min(ranks, 8), nbytes))
        return self._delay_s(ranks, nbytes, inside_s) + 2 * (ranks - 1) / ranks * nbytes / self._bus_bytes_s(ranks)

    def all_gather_s(self, nbytes: float, ranks: int) -> float:
        """Every rank ends with `nbytes` in all; a reduce-scatter of `nbytes` costs the same."""
        if ranks <= 1 or nbytes <= 0:
            return 0.0
        delay_s = self._delay_s(ranks, nbytes, GATHER_DELAYS * float(self._reduction.delay(min(ranks, 8))))
        return delay_s + (ranks - 1) / ranks * nbytes / self._bus_bytes_s(ranks)

    def all_to_all_s(self, tokens: float, copies: float, token_bytes: float, ranks: int, *, counted: bool) -> float:
        """Each rank sends every one of its `tokens` to `copies` experts.

        `counted` is DeepEP's normal mode: one copy per node crosses the fabric and the host waits for the counts. The
        low-latency mode sends every copy by itself and waits for nobody.
        """
        if ranks <= 1:
            return 0.0
        nodes = self.nodes_of(ranks)
        delay = (ALL_TO_ALL_DELAY_S + (ALL_TO_ALL_COUNT_S if counted else 0.0)) / self.factor
        inside_bytes_s = self.cluster.gpu.link.bytes_s * _ALL_TO_ALL_SHARE * self.factor
        if nodes == 1:
            return delay + tokens * copies * token_bytes * (ranks - 1) / ranks / inside_bytes_s
        port_bytes_s = self.cluster.fabric.bytes_s_per_gpu(self.cluster.node.gpus) * _ALL_TO_ALL_SHARE * self.factor
        away = copies * (nodes - 1) / nodes
        if counted:
            # distinct other nodes that the copies fall on
            away = (nodes - 1) * (1 - (1 - 1 / nodes) ** copies)
        between_s = tokens * away * token_bytes / port_bytes_s
        inside_s = tokens * copies * token_bytes / inside_bytes_s
        return delay + max(between_s, inside_s)

    def send_s(self, nbytes: float, *, between_nodes: bool) -> float:
        """Activations handed to the next pipeline stage."""
        link = self.cluster.fabric.port if between_nodes else self.cluster.gpu.link
        metadata_s = _HAND_OVER_BETWEEN_S if between_nodes else HAND_OVER_INSIDE_S
        return (metadata_s + link.latency_s) / self.factor + nbytes / (link.bytes_s * self.factor)
