"""When two runs were on the same machine, and how machines are called."""

from __future__ import annotations

import pytest

from ridgeline.records.run import Machine, machine_names, same_place

VM = Machine("vm", "boot-1", ("GPU-a", "GPU-b"))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (VM, True),
        (Machine("vm", "boot-1", ("GPU-b", "GPU-a")), True),
        (Machine("vm"), True),  # nothing known tells them apart
        (Machine("vm", "boot-2", ("GPU-a", "GPU-b")), False),
        (Machine("vm", "boot-1", ("GPU-a", "GPU-c")), False),
        (Machine("other", "boot-1", ("GPU-a", "GPU-b")), False),
    ],
)
def test_a_machine_is_more_than_its_host_name(other: Machine, same: bool) -> None:
    assert same_place(("vm",), (VM,), (other.host,), (other,)) is same


def test_nodes_of_a_job_are_compared_as_a_set() -> None:
    first, second = (Machine("n1", "a"),), (Machine("n2", "b"),)
    assert same_place(("n1", "n2"), first, ("n2", "n1"), second), "which node comes first may change"
    assert not same_place(("n1", "n2"), first, ("n1", "n3"), first)
    assert not same_place(("n1",), (), ("n2",), ())
    assert same_place(("n1.cluster",), (), ("n1",), ()), "one batch system writes both"
    assert same_place((), (), ("n1",), first), "unknown is not elsewhere"


def test_names_say_more_only_where_hosts_collide() -> None:
    again = Machine("vm", "9876543210", ("GPU-b2345678-90",))
    names = machine_names([VM, Machine("n1", "x"), again, VM])
    assert list(names.values()) == ["vm (boot boot-1, GPU a)", "vm (boot 98765432, GPU b2345678)", "n1"]
    assert machine_names([VM]) == {VM: "vm"}
