"""Faults on demand: what operators meet at night, made to happen at a chosen moment.

- `hang`: the engine stops, while /health goes on saying 200 and the gauges what they said last;
- `spin`: the same, with a process of the engine that uses all of a core, as a deadlock does that polls;
- `slow` or `slow:FACTOR`: every step takes that many times as long (default 3);
- `oom`: from then on the engine dies of CUDA out of memory when its KV pool is `OOM_SHARE` full;
- `kv-timeout`: KV sent between split roles never arrives;
- `crash`: the process ends at once.
Each may carry `@SECONDS`, counted from the server's start: `hang@30`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import InputError

KINDS = ("hang", "spin", "slow", "oom", "kv-timeout", "crash")
_SLOW_FACTOR = 3.0
OOM_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    at_s: float = 0.0
    factor: float = _SLOW_FACTOR


def parse_fault(text: str) -> Fault:
    """Raises InputError with the kinds there are."""
    name, _, at = text.partition("@")
    kind, colon, factor = name.partition(":")
    if kind not in KINDS or (colon and kind != "slow"):
        raise InputError(f"fault {text!r} is not known; use one of {', '.join(KINDS)}, such as hang@30 or slow:3")
    try:
        fault = Fault(kind, float(at or 0), float(factor or _SLOW_FACTOR))
    except ValueError:
        raise InputError(f"fault {text!r}: write a number of seconds after @, and a factor after slow:") from None
    if not (0 <= fault.at_s < 1e9 and 0 < fault.factor < 1e6):
        raise InputError(f"fault {text!r}: seconds from 0 on and a factor above 0 are wanted")
    return fault
