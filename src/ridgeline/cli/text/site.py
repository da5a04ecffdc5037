"""Shipped sites and the check of one, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.executors.site_check import CheckStep
from ridgeline.records.site import Site

COPY_ONE = "Copy a site beside your study, fill it in, and try it: ridgeline site check my-cluster.yaml"


def sites_text(sites: Sequence[tuple[Site, Path]], batch: Mapping[str, str]) -> str:
    """`batch` names the batch systems there are, each with the package it comes from."""
    shown = [name if package == "ridgeline" else f"{name} (from {package})" for name, package in batch.items()]
    rows = (f"{site.name:20} {site.batch:6} {path}" for site, path in sites)
    return "\n".join([*rows, "", f"`batch` in a site file may be {', '.join(shown)}.", COPY_ONE])


def site_head(site: Site) -> str:
    return f"site {site.name} ({site.batch}{', queue ' + site.queue if site.queue else ''})"


def step_text(step: CheckStep) -> str:
    return f"  {step.name:10} {'ok     ' if step.ok else 'FAILED '} {step.detail}"
