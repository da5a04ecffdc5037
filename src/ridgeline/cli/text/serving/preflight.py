"""What was found on a node, and nodes beside each other, for a terminal."""

from __future__ import annotations

from ridgeline.node.preflight.check import NodeReport
from ridgeline.node.preflight.compare import NOTICEABLE, NodeComparison


def node_text(node: NodeReport) -> str:
    width = max((len(check.name) for check in node.checks), default=0)
    lines = [f"  {check.name:<{width}}  {check.status:<5} {check.detail}" for check in node.checks]
    if node.exports:
        lines += ["", *node.exports]
    return "\n".join([node.host, *lines])


def comparison_text(found: NodeComparison) -> str:
    lines = [f"{len(found.hosts)} nodes: {', '.join(found.hosts)}"]
    lines += [f"  {difference}" for difference in found.slow]
    if not found.rates:
        lines.append("  no rates to compare: no node measured a GPU (--python names one with torch)")
    elif not found.slow:
        lines.append(f"  no slow node: {', '.join(found.rates)} differ by less than {NOTICEABLE:.0%}, or within noise")
    return "\n".join(lines + [f"  {line}" for line in (*found.mixed, *found.failed)])
