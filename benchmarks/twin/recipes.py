"""How the sweeps behind public rows started their engines: what a row does not say and its sweep's own files do.

`measured/launches.csv` has the flags of the scripts for one engine for both phases, as they were from a day on
(InferenceX, benchmarks/, at the commit that each line names; Apache-2.0). Layouts are the rows' own. Limits of 128 and
256 running requests are left out: rows of more users have more than those past their first token. For split roles
`measured/recipes.csv` joins InferenceX's configuration sheet of each day (which layouts, at which loads) with the
recipe that the sheet names (NVIDIA/srt-slurm, merge of sa-submission-q1-2026), both Apache-2.0: commits 8a02464b8,
ee032b37f and 593fb431a (B200 FP8), 84b7df683 (B200 FP4), fcc04aaa2 (H200), 78d48618f (H100), 2767db504 (GB200 FP4)
and 37f353be2 (GB200 FP8) of the one, 5063eb43 of the other; for GB200 in December 2025 c040b5cf2 and d83c9ee0, the
sheet's numbers of nodes where the two differ. Inputs only, nothing measured. The recipes for H100 and H200 deal prompts
in turn as well; that is left out until what holds their prefill engines up is known (docs/accuracy.md).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.memory import plan_memory
from ridgeline.serving.engines.settings import EngineSettings, model_of, settings_of
from ridgeline.serving.engines.vllm.defaults import meant

_ROLES = ("prefill", "decode")
# What the sweeps' scripts look for new requests every, in steps, with fewer users than these and with as many.
_LOOKS, _MANY = (10, 30), 16


@dataclass(frozen=True)
class Recipe:
    """One line of the sheet with what its recipe tells the servers of both roles."""

    words: Mapping[str, str]

    @property
    def drafts(self) -> bool:
        return self.words["drafting"] == "mtp"

    def number(self, name: str) -> int:
        return int(self.words[name])

    def limit(self, name: str) -> int | None:
        """None where the recipe leaves it to the engine."""
        return int(self.words[name]) if self.words[name] else None

    @property
    def all_gpus(self) -> str:
        return str(sum(self.number(f"{role}_tp") * self.number(f"{role}_engines") for role in _ROLES))

    def shape(self) -> dict[str, str]:
        """Its layout, in the columns of a public row."""
        found = {}
        for role in _ROLES:
            ranks = self.number(f"{role}_tp")
            groups = ranks if self.number(f"{role}_attn_dp") else 1
            ep = self.number(f"{role}_ep")
            sizes = {"tp_size": ranks // groups, "attention_dp_size": groups, "moe_ep_size": ep}
            sizes |= {"moe_tp_size": ranks // ep, "num_workers": self.number(f"{role}_engines")}
            found |= {f"{role}_{name}": str(size) for name, size in sizes.items()}
        return found

    def told(self, deployment: Deployment) -> Deployment:
        """The deployment with what the recipe tells each role, and its KV cache."""
        shared = replace(
            deployment.settings,
            stream_interval=self.limit("stream_interval") or 1,
            attention_backend=self.words["backend"],
        )
        prefill = replace(
            shared,
            chunked_prefill_size=self.number("prefill_chunk"),
            max_running_requests=self.number("prefill_running"),
            mem_fraction=float(self.words["prefill_fraction"]),
            prefill_graph=False,
            dealt_in_turn=self.words["prefill_dealing"] == "round_robin",
        )
        return replace(
            deployment,
            model=deployment.model.with_dtype(kv_dtype=self.words["kv_dtype"]),
            settings=shared,
            prefill_settings=prefill,
            decode_settings=self._decoding(shared),
        )

    def _decoding(self, shared: EngineSettings) -> EngineSettings:
        return replace(
            shared,
            max_running_requests=self.limit("decode_running"),
            cuda_graph_max_bs=self.number("decode_graph"),
            mem_fraction=float(self.words["decode_fraction"]),
            draft_tokens=self.number("draft_tokens"),
            draft_overlap=self.words["draft_overlap"] == "1",
        )


def launched(deployment: Deployment, base: EngineSettings, day: str, users: int, prompt: int) -> Deployment | None:
    """One engine for both phases, as the script of that day started it for so many users: what it leaves out is
    `base`'s. Rows older than all scripts, or without a day, are of the first. None where no script is known."""
    model, gpu = deployment.model, deployment.cluster.gpu
    names = (gpu.name, model.weights_dtype)
    mine = [w for w in _launches() if (w["gpu"], w["weights"]) == names and model.name.startswith(w["model"])]
    told = [words for words in mine if words["since"] <= day] or mine[:1]
    if not told:
        return None
    flags = told[-1]["flags"].format(users=users, look=_LOOKS[users >= _MANY], prompts=2 * prompt)
    values = engine_flags(deployment.settings.engine).from_arguments(flags.split())
    model = model_of(model, values)
    if deployment.settings.engine == "vllm":
        values = meant(values, plan_memory(model, gpu, deployment.layout, deployment.settings), gpu)
    return replace(deployment, model=model, settings=settings_of(values, base))


def recipes_of(row: Mapping[str, str], gpu: str, label: Mapping[str, str]) -> list[Recipe]:
    """Every recipe that may have made this row, the assumed one first; none where no sheet has its shape and load.

    Rows copy the expert ranks of prefill into the columns of decode, so that only the tensor-parallel size of decode is
    compared. Engines count where the row or its label states them. Where the sheet has a shape with and without
    drafting and nobody says which, no drafting is assumed, never what the measured time suggests.
    """
    asked = {name: row[name] for name in ("precision", "input_tokens", "output_tokens")} | {"gpu": gpu}
    load = _whole(row["concurrency"])
    fitting = [
        r
        for r in _recipes()
        if all(r.words[name] == value for name, value in asked.items())
        and load in r.words["concurrencies"].split("/")
        and _same_shape(r, row)
    ]
    fitting = [r for r in fitting if r.words["day"] == row["measured"]] or fitting
    engines = tuple(_whole(row[f"{role}_num_workers"] or label.get(f"{role}_num_workers", "")) for role in _ROLES)
    if all(engines):
        stated = [r for r in fitting if (r.words["prefill_engines"], r.words["decode_engines"]) == engines]
        fitting = stated if row["decode_num_workers"] else stated or fitting
    if label.get("spec_method"):
        fitting = [r for r in fitting if r.words["drafting"] == label["spec_method"]] or fitting
    return sorted(fitting, key=lambda r: r.drafts)


# The sheet of this day says tp 1 and ep 1 of every engine, and that its scripts do not read them.
_WITHOUT_SHAPES = "2025-12-21"


def _same_shape(recipe: Recipe, row: Mapping[str, str]) -> bool:
    """Rows of a sheet without shapes state a tp of 1, the right number of ranks, or all GPUs of both roles."""
    stated = tuple(_ranks(row, role) for role in _ROLES)
    ran = recipe.words["prefill_tp"], recipe.words["decode_tp"]
    if recipe.words["day"] != _WITHOUT_SHAPES:
        return stated == ran and recipe.words["prefill_ep"] == _whole(row["prefill_moe_ep_size"])
    return row["measured"] <= _WITHOUT_SHAPES and stated in (ran, ("1", "1"), (recipe.all_gpus, recipe.all_gpus))


def _ranks(row: Mapping[str, str], role: str) -> str:
    """Ranks of an engine: a row's tp is that of an attention group."""
    groups = int(_whole(row[f"{role}_attention_dp_size"]) or 1)
    return str(int(_whole(row[f"{role}_tp_size"])) * groups)


def _whole(text: str) -> str:
    return str(int(float(text))) if text else ""


@lru_cache(maxsize=1)
def _launches() -> tuple[Mapping[str, str], ...]:
    """Of each script the oldest first."""
    with (Path(__file__).parent / "measured" / "launches.csv").open() as file:
        return tuple(csv.DictReader(file))


@lru_cache(maxsize=1)
def _recipes() -> tuple[Recipe, ...]:
    with (Path(__file__).parent / "measured" / "recipes.csv").open() as file:
        return tuple(Recipe(words) for words in csv.DictReader(file))
