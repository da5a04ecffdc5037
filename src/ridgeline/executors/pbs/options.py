"""What a site file may say to PBS under `options`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ridgeline.executors.options import BatchOptions
from ridgeline.study.forms.form import OneLine, Otherwise, Takes


class PbsOptions(BatchOptions):
    """Options of `batch: pbs`."""

    whose = "pbs"
    account_option: OneLine = Field(default="-P", description="The option of qsub that names the account; often -A.")
    request: Literal["select", "plain"] = Field(
        default="select",
        description="How resources are asked for: chunks with `-l select=`, or totals with `-l ncpus=` and `-l mem=`.",
    )
    hosts: Annotated[list[OneLine], Takes("a list of node names"), Otherwise("none")] = Field(
        default=[], description="All nodes by name: PBS can avoid a faulty one only when the others are named."
    )
