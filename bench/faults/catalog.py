"""All programs by their names."""

from __future__ import annotations

from bench.faults import (
    collectives,
    disks,
    ends,
    frozen,
    healthy,
    loaders,
    loads,
    machine,
    memory,
    networks,
    numbers,
    outside,
    pods,
    prints,
    remote,
    schedulers,
    services,
    starts,
    swaps,
    threads,
    versions,
    waits,
)
from bench.faults.program import Fault

FAULTS: tuple[Fault, ...] = (
    *ends.FAULTS,
    *waits.FAULTS,
    *frozen.FAULTS,
    *loads.FAULTS,
    *machine.FAULTS,
    *memory.FAULTS,
    *disks.FAULTS,
    *services.FAULTS,
    *outside.FAULTS,
    *loaders.FAULTS,
    *starts.FAULTS,
    *prints.FAULTS,
    *swaps.FAULTS,
    *threads.FAULTS,
    *collectives.FAULTS,
    *versions.FAULTS,
)
# Their jobs are on hosts of their own.
OF_HOSTS: tuple[Fault, ...] = (*networks.FAULTS, *remote.FAULTS)
# Their jobs are on a real cluster of this machine.
OF_CLUSTERS: tuple[Fault, ...] = (*schedulers.FAULTS, *pods.FAULTS)
# Only tables show them.
OF_TABLES: tuple[Fault, ...] = numbers.FAULTS
ALL: tuple[Fault, ...] = (
    *FAULTS,
    *OF_HOSTS,
    *OF_CLUSTERS,
    *OF_TABLES,
    *healthy.HEALTHY,
    *collectives.HEALTHY,
    *versions.HEALTHY,
    *schedulers.HEALTHY,
    *pods.HEALTHY,
)


def by_name(name: str) -> Fault:
    """The program of this name; `SystemExit` names the others."""
    found = next((one for one in ALL if one.name == name), None)
    if found is None:
        raise SystemExit(f"no program {name!r}: {', '.join(one.name for one in ALL)}")
    return found
