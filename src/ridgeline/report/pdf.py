"""Pages printed by a headless browser where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ridgeline.errors import InputError, StoreError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
LIMIT_S = 180.0


def browser_path() -> str:
    """The first browser on the PATH that can print; InputError says what to do where there is none."""
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise InputError(
            "a PDF needs Chromium or Chrome on the PATH, and there is none; install one (apt install chromium), "
            "or write the HTML report and print it from any browser: it is laid out for paper"
        )
    return found


def write_pdf(page: Path, out: Path) -> Path:
    """`page`, an HTML file, as a PDF; StoreError where the browser would not write it."""
    browser = browser_path()
    with tempfile.TemporaryDirectory(prefix="ridgeline-browser-") as folder:
        made = Path(folder, f"made{out.suffix}")
        # a container's root may not make the sandbox, and the page is our own file
        alone = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [
            browser, "--headless", *alone, "--disable-gpu", f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer", f"--print-to-pdf={made}", page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StoreError(f"{browser} did not print the report ({error}); print the HTML report by hand") from None
        if not made.is_file() or not made.stat().st_size:
            said = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
            raise StoreError(f"{browser} did not print the report ({said[0]}); print the HTML report by hand")
        try:
            shutil.copyfile(made, out)
        except OSError as error:
            raise StoreError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None
    return out
