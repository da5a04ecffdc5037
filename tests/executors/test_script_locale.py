"""Runs have a locale whose numbers have a point, unless their study or site names another."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ridgeline.executors import script
from ridgeline.records.run import Job, Resources
from ridgeline.records.site import Site

_SEEN = "LC_ALL LC_NUMERIC LANG"


@pytest.mark.parametrize(
    ("site_env", "env", "caller", "seen"),
    [
        ({}, {}, {"LC_ALL": "de_DE.UTF-8"}, "C.UTF-8//"),
        ({}, {}, {"LC_NUMERIC": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}, "C.UTF-8/de_DE.UTF-8/de_DE.UTF-8"),
        ({}, {"LC_ALL": "de_DE.UTF-8"}, {}, "de_DE.UTF-8//"),
        ({"LC_ALL": "fr_FR.UTF-8"}, {}, {}, "fr_FR.UTF-8//"),
        ({}, {"LANG": "de_DE.UTF-8"}, {"LC_ALL": "C", "LC_NUMERIC": "C"}, "//de_DE.UTF-8"),
        ({}, {"LC_NUMERIC": "de_DE.UTF-8"}, {"LC_ALL": "C", "LANG": "C"}, "/de_DE.UTF-8/C"),
        ({}, {"LANGUAGE_PACK": "1"}, {"LC_ALL": "de_DE.UTF-8"}, "C.UTF-8//"),
    ],
)
def test_the_locale_of_a_run(
    site_env: dict[str, str], env: dict[str, str], caller: dict[str, str], seen: str, tmp_path: Path
) -> None:
    job = Job("r", tmp_path, 'echo "$LC_ALL/$LC_NUMERIC/$LANG"', env, Resources(), limit_s=60.0)
    site = Site("here", env=site_env)
    script.write(job, site, script.render(job, site))
    outside = {name: value for name, value in os.environ.items() if name not in _SEEN.split()}
    said = subprocess.run(
        ["sh", str(tmp_path / "run.sh")], env={**outside, **caller}, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == seen
    exported = (tmp_path / "env").read_text()
    assert ("LC_ALL=C.UTF-8" in exported) is seen.startswith("C.UTF-8")
