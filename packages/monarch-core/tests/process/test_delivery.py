"""Messages that cannot be sent: they fail their own call, and nothing else."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

import pytest
from worker_processes import Workers

from monarch._core.errors.text import undeliverable
from monarch.actor import Actor, ActorError, DeliveryError, SupervisionError, endpoint, per_rank, send, this_host
from monarch.config import configured

if TYPE_CHECKING:
    from collections.abc import Iterator

TOO_LARGE = 4 << 30


def too_large() -> PickleBuffer:
    """The kernel makes its pages when they are touched, and no code touches them."""
    return PickleBuffer(mmap.mmap(-1, TOO_LARGE))


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process has reached its limit of open files: it can make no shared memory."""
    import resource

    # Monarch's modules for errors are in files too: they are loaded before.
    str(SupervisionError(undeliverable("", "", "", "")))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 512), limits[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Holder(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    def take(self, x: Any) -> int:
        self.seen.append(len(x))
        return len(x)

    @endpoint
    def all_seen(self) -> list[int]:
        return self.seen

    @endpoint
    def make(self, size: int) -> bytes:
        return bytes(size)

    @endpoint
    def make_too_large(self) -> PickleBuffer:
        return too_large()

    @endpoint
    def fail_without_descriptors(self) -> None:
        import resource

        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, self.limits[1]))
        raise ValueError("for once")

    @endpoint
    def make_without_descriptors(self, size: int) -> bytes:
        import resource

        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The limit lasts until `restore`, because the answer is sent after this method has returned.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, self.limits[1]))
        return bytes(size)

    @endpoint
    def restore(self) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)

    @endpoint
    def call_with_too_large(self, other: Any) -> str:
        try:
            other.take.call(too_large()).get()
        except DeliveryError as e:
            return str(e)
        return "delivered"


def test_message_without_shared_memory_is_an_error():
    procs = this_host().spawn_procs({"gpus": 2})
    holders = procs.spawn("holder", Holder)
    holders.take.call(b"first").get()
    large = bytes(80 << 20)
    with no_descriptors():
        take, one = holders.take, holders.slice(gpus=0)
        futures = [take.call(large), one.take.call_one(large), take.choose(large), *take.stream(large)]
        for future in futures:
            with pytest.raises(
                DeliveryError, match=r"^undeliverable message for holder\.take\(\) from client to .*: no shared memory"
            ) as caught:
                future.get()
            assert caught.value.code == "undeliverable"
        for cast in (lambda: holders.take.broadcast(large), lambda: send(holders.take, (large,), {})):
            with pytest.raises(DeliveryError, match="no shared memory"):
                cast()
        # A small message needs no shared memory.
        assert list(holders.take.call(b"small").get().values()) == [5, 5]
    assert list(holders.take.call(large).get().values()) == [len(large)] * 2
    assert list(holders.all_seen.call().get().values()) == [[5, 5, len(large)]] * 2
    procs.stop().get()


def test_value_without_memory_fails_its_rank_only():
    with this_host().spawn_procs({"gpus": 3}) as procs:
        holders = procs.spawn("holder", Holder)
        holders.take.call(per_rank([b"first"] * 3)).get()
        large = bytes(160 << 20)  # the arena keeps smaller blocks of other tests
        values = [b"1", large, b"333"]
        with no_descriptors():
            errors = [answer.exception() for answer in holders.take.stream(per_rank(values))]
            assert [type(error) for error in errors if error is not None] == [DeliveryError]
            with pytest.raises(DeliveryError, match=r"^undeliverable message for holder\.take\(\) from client to .*: no shared memory"):
                holders.take.call(per_rank(values)).get()
        assert holders.take.call(per_rank(values)).get().values() == [1, len(large), 3]
        assert holders.all_seen.call().get().values() == [[5, 1, 1, 1], [5, len(large)], [5, 3, 3, 3]]


def test_mapped_memory_is_passed_without_another_descriptor():
    procs = this_host().spawn_procs({"gpus": 2})
    holders = procs.spawn("holder", Holder)
    holders.take.call(b"first").get()
    large = bytes(1 << 20)
    one, other = holders.slice(gpus=0), holders.slice(gpus=1)
    assert one.take.call_one(large).get() == len(large)
    with no_descriptors():
        assert one.take.call_one(large).get() == len(large)
        # This actor has not mapped that memory yet.
        assert other.take.call_one(large).get() == len(large)
    procs.stop().get()


@contextlib.contextmanager
def no_memory(pid: int, spare: int) -> Iterator[None]:
    """Limits the process to `spare` more bytes of memory."""
    import resource

    limits = resource.prlimit(pid, resource.RLIMIT_AS)
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used + spare, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, limits)


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize("moved", ["sent"], indirect=True)
def test_relay_without_shared_memory_fails_the_call():
    with Workers(2) as workers, workers.attach() as hosts:
        holders = hosts.spawn_procs().spawn("holder", Holder)
        one, other = holders.slice(hosts=0), holders.slice(hosts=1)
        assert list(holders.take.call(b"first").get().values()) == [5, 5]
        large = bytes(48 << 20)
        with no_memory(workers.processes[0].pid, 16 << 20):
            with pytest.raises(DeliveryError, match=r"from client to .*: parts of it were lost on the way"):
                one.take.call_one(large).get()
            with pytest.raises(DeliveryError, match="parts of the answer were lost on the way"):
                one.make.call_one(len(large)).get()
            assert other.take.call_one(bytes(1 << 20)).get() == 1 << 20
            assert one.take.call_one(b"small").get() == 5
        assert one.take.call_one(large).get() == len(large)
        assert one.make.call_one(len(large)).get() == large
        assert one.all_seen.call_one().get() == [5, 5, len(large)]


def test_answer_without_shared_memory_is_an_error():
    procs = this_host().spawn_procs()
    holder = procs.spawn("holder", Holder)
    with pytest.raises(ActorError, match="no shared memory") as caught:
        holder.make_without_descriptors.call_one(80 << 20).get()
    assert isinstance(caught.value.exception, DeliveryError)
    holder.restore.call_one().get()
    assert holder.make.call_one(80 << 20).get() == bytes(80 << 20)
    procs.stop().get()


class Boom(Actor):
    def __init__(self) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        raise ValueError("in the beginning")

    @endpoint
    def ping(self) -> None:
        pass


@pytest.mark.parametrize("method", ["auto", "exec"])
def test_failures_of_actors_without_descriptors(method: str):
    # The failure is the first event in its process.
    with configured(spawn_method=method):
        procs = this_host().spawn_procs()
        holder = procs.spawn("holder", Holder)
        with pytest.raises(ActorError, match="ValueError: for once"):
            holder.fail_without_descriptors.call_one().get()
        holder.restore.call_one().get()
        assert holder.take.call_one(b"alive").get() == 5
        procs.stop().get()
        procs = this_host().spawn_procs()
        boom = procs.spawn("boom", Boom)
        with pytest.raises(SupervisionError, match="ValueError: in the beginning"):
            boom.ping.call_one().get()
        procs.stop().get()


def test_too_large_for_another_host():
    with Workers(2) as workers, workers.attach() as hosts:
        holders = hosts.spawn_procs().spawn("holder", Holder)
        here = this_host().spawn_procs().spawn("here", Holder)
        large = too_large()
        why = r"a message of 42949\d+ bytes is too large for another host: at most \d+, send it in parts"
        with pytest.raises(DeliveryError, match=rf"from client to holder \(2 ranks\): {why}"):
            holders.take.call(large).get()
        with pytest.raises(DeliveryError, match=r"to <root>\.<test_delivery\.Holder holder\{'hosts': 1/2\}>: "):
            holders.slice(hosts=1).take.call_one(large).get()
        with pytest.raises(DeliveryError):
            holders.take.broadcast(large)
        # An actor that continues afterwards sends; and an answer fails.
        said = here.call_with_too_large.call_one(holders).get()
        assert "from <root>.<test_delivery.Holder here> to holder (2 ranks): a message of" in said
        with pytest.raises(ActorError, match="is too large for another host") as caught:
            holders.slice(hosts=0).make_too_large.call_one().get()
        assert isinstance(caught.value.exception, SupervisionError)
        assert list(holders.take.call(b"small").get().values()) == [5, 5]
        assert list(holders.all_seen.call().get().values()) == [[5], [5]]
