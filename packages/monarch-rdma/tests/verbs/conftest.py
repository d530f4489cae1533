"""Two wires with a device at both ends, and what may happen on them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.rdma.verbs.devices import ports
from monarch.rdma.verbs.pyverbs_library import problem

HERE = Path(__file__).parent
WIRE = HERE.parents[3] / "tools" / "vm" / "wire.sh"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of it needs devices."""
    why = "" if {"rxe0", "rxe1"} <= {port.device for port in ports()} else "no soft-RoCE devices here: `python -m tools.vm run` has some"
    why = why or problem()
    for item in items:
        if HERE in item.path.parents:
            # An emulated machine is ten times slower.
            item.add_marker(pytest.mark.timeout(120))
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def wires() -> None:
    """A second wire, rxe2 and rxe3."""
    if "rxe2" not in {port.device for port in ports()}:
        subprocess.run(["bash", str(WIRE), "1"], check=True)


@pytest.fixture
def netem(wires: None) -> Iterator[object]:
    """Sets what happens to packets that an interface sends."""
    used: set[str] = set()

    def change(interface: str, *what: str) -> None:
        used.add(interface)
        subprocess.run(["tc", "qdisc", "replace", "dev", interface, "root", "netem", "limit", "10000", *what], check=True)

    yield change
    for interface in used:
        subprocess.run(["tc", "qdisc", "del", "dev", interface, "root"], check=True)
