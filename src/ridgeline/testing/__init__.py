"""For tests, ours and those of plugin authors: stand-ins that keep the contracts, and the contracts themselves.

The stand-ins need nothing; `ridgeline.testing.contracts` needs pytest and Hypothesis: `pip install ridgeline[testing]`.
"""

from ridgeline.testing.standins import FunctionWorkload, MemoryExecutor, ScriptedAnswer, World

__all__ = ["FunctionWorkload", "MemoryExecutor", "ScriptedAnswer", "World"]
