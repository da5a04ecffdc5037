"""Latency limits that a study states as `slo`, and what its goodput counts."""

from __future__ import annotations

from ridgeline.records.expression import is_number
from ridgeline.records.study import Study
from ridgeline.serving.traffic.requests import Slo, stated_slos
from ridgeline.workloads.base import Limit, Terms

_RUNNING = ("max_running_requests", "max_num_seqs")  # no more than what is sent can run at once


def terms(study: Study) -> Terms:
    slos = stated_slos(study.workload.options.get("slo", ()))
    sent = study.workload.options.get("concurrency")
    enough = dict.fromkeys(_RUNNING, float(sent)) if is_number(sent) else {}
    if not slos:
        return Terms(enough=enough)
    limits = tuple(Limit(slo.metric, slo.limit_ms, f"{slo.latency.upper()} {slo.quantile}", "ms") for slo in slos)
    counted = f"requests {within_each(slos)}" if study.goal.metric == "goodput" else ""
    stated = " ".join(f"--slo {slo.metric}={slo.limit_ms:g}" for slo in slos)
    return Terms(limits, counted, f"ridgeline bench URL --find-goodput {stated}", enough)


def within_each(slos: list[Slo]) -> str:
    """'whose TTFT is at most 2000 ms and mean ITL at most 50 ms': what goodput asks of a request, whatever percentile a
    limit names."""
    limits = [
        f"{'mean ' if slo.latency in ('itl', 'tpot') else ''}{slo.latency.upper()}{'' if at else ' is'} at most "
        f"{slo.limit_ms:g} ms"
        for at, slo in enumerate(slos)
    ]
    return f"whose {' and '.join(limits)}"
