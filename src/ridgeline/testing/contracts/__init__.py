"""What every part promises, as test suites. A part joins by a subclass in its own tests:

    from ridgeline.testing.contracts.samplers import SamplerContract

    class TestNearest(SamplerContract):
        name = "nearest"  # as study files name it

Each suite says in its docstring what a subclass must add. pytest and Hypothesis are needed here and nowhere else.
"""

import pytest

# so that a promise that is broken shows its values, as in a test file
pytest.register_assert_rewrite(
    *(f"{__name__}.{suite}" for suite in ("analyzers", "dialects", "executors", "samplers", "workloads"))
)


def held_to(contract: type[object]) -> set[str]:
    """Names of the parts that have joined a suite so far. A catalog with others in it has forgotten somebody."""
    names: set[str] = {contract.__dict__["name"]} if "name" in contract.__dict__ else set()
    return names.union(*(held_to(joined) for joined in contract.__subclasses__()))
