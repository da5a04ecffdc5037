"""numpy with one thread. The matrices of statistics are small: on a busy machine threads would wait for each other for
seconds, and on a login node they would be somebody else's."""

from __future__ import annotations

import importlib
import os
from typing import Any

_THREADS = "OPENBLAS_NUM_THREADS"


def _with_one_thread() -> Any:
    """OpenBLAS reads the variable as it is loaded. It does not stay: programs that a campaign runs choose theirs."""
    if _THREADS in os.environ:
        return importlib.import_module("numpy")
    os.environ[_THREADS] = "1"
    try:
        return importlib.import_module("numpy")
    finally:
        del os.environ[_THREADS]


numpy = _with_one_thread()
