"""run.sh belongs to a release: `verify` compares it line by line with what the same release would write today."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.records.run import Job
from ridgeline.records.site import Site

# the release that last changed the text, and what it comes to for each batch system
RELEASE = "0.3.0"
DIGESTS = {
    "local": "0292b3252ad87f14",
    "slurm": "b11d75843004ac7d",
    "pbs": "f6c7271ba1561ae8",
    "simulated": "7f4a7bd02bb3b20e",
}


def rendered(batch: str) -> str:
    site = Site(name="here", batch=batch, queue="q", modules=("mpi",), env={"A": "b"}, setup=("ulimit -c 0",))
    job = Job("job", Path("/study/runs/0001"), "true", env={"C": "d"}, limit_s=60.0, silence_limit_s=30.0, grace_s=5.0)
    text: str = catalog.part("executors", batch)(site).script(job)
    return re.sub(r"RIDGELINE_RUN=[0-9a-f]+", "RIDGELINE_RUN=ID", text)


@pytest.mark.parametrize("batch", DIGESTS)
def test_the_text_of_a_script_changes_with_the_release(batch: str) -> None:
    found = hashlib.sha256(rendered(batch).encode()).hexdigest()[:16]
    assert found == DIGESTS[batch], (
        f"run.sh changed ({found}), so folders of {RELEASE} no longer pass `verify`: "
        f"raise __version__ if {RELEASE} is out, and write the new digest and release here"
    )
