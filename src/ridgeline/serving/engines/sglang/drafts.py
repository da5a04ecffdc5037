"""Drafts with which SGLang does not start, read in its source (arg_groups/speculative_hook.py, 0.5.10 to 0.5.23).

Of an algorithm that it does not know by name, as a plugin may bring, nothing is certain.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.records.expression import Value
from ridgeline.serving.engines.exclusions import number, on
from ridgeline.serving.engines.releases import Version, release_meant
from ridgeline.serving.model.model import Model

_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
# Algorithms of one handler, by which steps, branches and tokens follow from each other.
_STEPPED = frozenset({"EAGLE", "NEXTN", "EAGLE3", "STANDALONE"})
# They always draft with a model of their own; EAGLE takes the model's layers, DSPARK those that a checkpoint brings.
_OWN_MODEL = frozenset({"EAGLE3", "STANDALONE", "DFLASH"})
_NO_ATTENTION_DP = frozenset({"STANDALONE", "NGRAM"})
_DFLASH_ATTENTION_DP: Version = (0, 5, 23)
# Only their kernels read a tree of drafts over pages of several tokens.
_PAGED_TREES = ("flashinfer", "fa3", "triton")


def draft_refusal(model: Model | None, values: Mapping[str, Value], version: Version) -> str | None:
    """Why these settings, under our names, cannot draft; None where nothing is certain."""
    algorithm = str(values.get("speculative_algorithm") or "").upper()
    steps, branches, tokens = (values.get(name) for name in _NUMBERS)
    given = [name for name in _NUMBERS if values.get(name) is not None]
    if not algorithm:
        return f"{given[0]} does nothing without speculative_algorithm; add it, such as EAGLE" if given else None
    if algorithm in _STEPPED:
        if given and steps is None and not on(values, "speculative_adaptive"):
            return f"{given[0]} without speculative_num_steps: SGLang stops at an assertion; give both, or neither"
        if steps is not None and branches is None:
            return "speculative_num_steps without speculative_eagle_topk: SGLang stops at it; 1 is a chain of drafts"
        if number(values, "speculative_eagle_topk") > 1 and tokens is None:
            return "a tree of drafts (speculative_eagle_topk above 1) needs speculative_num_draft_tokens"
        page, backend = number(values, "page_size"), values.get("attention_backend")
        if number(values, "speculative_eagle_topk") > 1 and page > 1 and backend not in (None, *_PAGED_TREES):
            how = f"use page_size 1, one branch, or {', '.join(_PAGED_TREES)}"
            return f"{backend} reads no tree of drafts (speculative_eagle_topk {branches}) over pages of {page}; {how}"
    if number(values, "attn_dp") > 1 and (reason := _under_attention_dp(algorithm, values, release_meant(version))):
        return reason
    if values.get("speculative_draft_model_path") is None:
        own = "name a draft model by speculative_draft_model_path"
        if algorithm in _OWN_MODEL:
            return f"{algorithm} drafts with a model of its own; {own}"
        if algorithm in ("EAGLE", "NEXTN") and model is not None and not model.draft_layers:
            return f"{model.name} has no drafting layers of its own for {algorithm}; {own}, or draft by NGRAM"
    return None


def _under_attention_dp(algorithm: str, values: Mapping[str, Value], release: Version) -> str:
    if algorithm in _NO_ATTENTION_DP or (algorithm == "DFLASH" and release < _DFLASH_ATTENTION_DP):
        return f"{algorithm} drafts exclude attention DP; use attn_dp 1, or EAGLE"
    if algorithm in ("DFLASH", "DSPARK") and not on(values, "enable_dp_lm_head"):
        return f"{algorithm} drafts under attention DP need enable_dp_lm_head; set it, or use attn_dp 1"
    return ""
