"""The server of a setting as a person types it, without the session that a run has around it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.engines.base import HEAD, MODEL, PORT, RENDEZVOUS, ServingEngine, Span
from ridgeline.ports import RENDEZVOUS_PORT, SGLANG_PORT
from ridgeline.records.launch import contained
from ridgeline.records.run import Resources
from ridgeline.records.site import Site
from ridgeline.workloads.shell_text import pasted_run


@dataclass(frozen=True, slots=True)
class PastedServer:
    """`arguments` are the engine's; `site` is where it runs, in its container; `prepare` are its one-time steps."""

    dialect: ServingEngine
    python: str
    model: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    site: Site
    resources: Resources
    prepare: Sequence[str] = ()
    before: Sequence[str] = ()

    def text(self) -> str:
        command = contained(self.site, self.resources, self._server())
        return pasted_run(self.site, self.env, "\n".join([*self._first(), command]), self.before)

    def _server(self) -> str:
        # what the session finds out on the node, as a person would choose it
        known = {f'"${MODEL}"': shlex.quote(self.model), f'"${PORT}"': str(SGLANG_PORT)}
        known |= {f"${HEAD}": "$head", f"${RENDEZVOUS}": str(RENDEZVOUS_PORT)}
        text = self.dialect.serve(self.python, self.arguments, Span(self.resources.nodes))
        for variable, value in known.items():
            text = text.replace(variable, value)
        return text

    def _first(self) -> Iterator[str]:
        """What a person must say that nobody can know for them."""
        if self.resources.nodes > 1:
            # not every shell that is typed into knows comments
            yield f": 'first of {self.resources.nodes} nodes; on the next: rank=1, and head as echo $head says here'"
            # not its name, which many nodes take for 127.0.1.1
            yield "rank=0 head=$(hostname -I | cut -d' ' -f1)"
        for name, step in self.dialect.steps.items():
            if name in self.prepare and step.variable:
                what = step.file or "folder"
                yield f'export {step.variable}="${{{step.variable}:?set it to the {what} that the step {name} kept}}"'
