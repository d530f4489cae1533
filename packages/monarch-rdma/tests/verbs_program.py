"""A program with procs that hold queue pairs and registered memory when they end: stopped, stopped after a failure, or left at its end."""

from __future__ import annotations

import contextlib

from memory_actors import pattern
from other_hosts import other_hosts
from verbs_actors import VerbsOwner, VerbsReader

import monarch.actor
from monarch.actor import ActorError, SupervisionError


def reader_of_devices(owners, readers):
    """A reader that has memory of an owner by devices."""
    buffer = owners.spawn("owner", VerbsOwner).share.call_one(5000).get()
    reader = readers.spawn("reader", VerbsReader)
    path = None
    while path is None:
        assert reader.read.call_one(buffer).get() == pattern(5000)
        # An emulated machine may need longer for devices than `path` waits.
        with contextlib.suppress(ActorError):
            path = reader.keep.call_one(buffer).get()
    assert path == "verbs:rxe0", path
    return reader


def main():
    monarch.actor.unhandled_fault_hook = lambda failure: None
    with contextlib.ExitStack() as stack:
        devices = ({"MONARCH_RDMA_IBVERBS_TARGET": f"nic:{name}"} for name in ("rxe1", "rxe0"))
        hosts = [stack.enter_context(other_hosts(**one)) for one in devices]
        both = [host.spawn_procs(name="stopped") for host in hosts]
        reader = reader_of_devices(*both)
        print("open", flush=True)
        with contextlib.suppress(SupervisionError):
            reader.fail.call_one().get()
        for procs in both:
            procs.stop().get()
        print("stopped", flush=True)
        reader_of_devices(*[host.spawn_procs(name="left") for host in hosts])
        print("left", flush=True)


if __name__ == "__main__":
    main()
