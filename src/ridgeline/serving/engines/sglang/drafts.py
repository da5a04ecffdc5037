"""Drafts with which SGLang does not start, read in its source (arg_groups/speculative_hook.py, 0.5.15 and 0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.records.expression import Value
from ridgeline.serving.model.model import Model

_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
# Algorithms that always draft with a model of their own; the others take the model's own drafting layers.
_OWN_MODEL = frozenset({"EAGLE3", "STANDALONE", "DFLASH", "DSPARK"})
_NO_ATTENTION_DP = frozenset({"STANDALONE", "NGRAM", "DFLASH"})
# Only their kernels read a tree of drafts over pages of several tokens.
_PAGED_TREES = ("flashinfer", "fa3", "triton")


def draft_refusal(model: Model | None, values: Mapping[str, Value]) -> str | None:
    """Why these settings, under our names, cannot draft; None where nothing is certain."""
    algorithm = str(values.get("speculative_algorithm") or "").upper()
    steps, branches, tokens = (values.get(name) for name in _NUMBERS)
    given = [name for name in _NUMBERS if values.get(name) is not None]
    if not algorithm:
        return f"{given[0]} does nothing without speculative_algorithm; add it, such as EAGLE" if given else None
    if algorithm == "NGRAM":
        pass  # its tree follows from options of its own
    elif algorithm not in ("DFLASH", "DSPARK") and given and steps is None:
        return f"{given[0]} without speculative_num_steps: SGLang stops at an assertion; give both, or neither"
    elif steps is not None and branches is None:
        return "speculative_num_steps without speculative_eagle_topk: SGLang stops at it; 1 is a chain of drafts"
    elif isinstance(branches, int) and branches > 1 and tokens is None:
        return "a tree of drafts (speculative_eagle_topk above 1) needs speculative_num_draft_tokens"
    page = values.get("page_size")
    if isinstance(branches, int) and branches > 1 and isinstance(page, int) and page > 1:
        backend = values.get("attention_backend")
        if backend is not None and backend not in _PAGED_TREES:
            how = f"use page_size 1, one branch, or {', '.join(_PAGED_TREES)}"
            return f"{backend} reads no tree of drafts (speculative_eagle_topk {branches}) over pages of {page}; {how}"
    groups = values.get("attn_dp")
    if algorithm in _NO_ATTENTION_DP and isinstance(groups, int) and groups > 1:
        return f"{algorithm} drafts exclude attention DP; use attn_dp 1, or EAGLE"
    if values.get("speculative_draft_model_path") is None:
        own = "name a draft model by speculative_draft_model_path"
        if algorithm in _OWN_MODEL:
            return f"{algorithm} drafts with a model of its own; {own}"
        if algorithm in ("EAGLE", "NEXTN") and model is not None and not model.draft_layers:
            return f"{model.name} has no drafting layers of its own; {own}, or draft by NGRAM"
    return None
