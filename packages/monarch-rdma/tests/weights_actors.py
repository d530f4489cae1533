"""Trainers that publish weights, and generators that pull them. Free of imports of the test framework."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings

import numpy as np

from monarch.actor import Actor, current_rank, deadline, endpoint
from monarch.extension import member
from monarch.rdma import RDMAError
from monarch.rdma.weights import Box, Weights, announcements, published, puller
from monarch.rdma.weights.words import WRITING, word

ROWS, COLUMNS = 48, 8


def whole(version):
    """The global tensors of a version: each number is different, and of the version."""
    return {
        "matrix": np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) + 1000 * version,
        "bias": np.arange(COLUMNS, dtype=np.float64) - version,
    }


def part(state, dim, count, rank):
    """The part of a rank: the matrix is cut along `dim`, the bias is on all ranks."""
    index = np.array_split(np.arange(state["matrix"].shape[dim]), count)[rank]
    offset, shape = [0, 0], list(state["matrix"].shape)
    offset[dim], shape[dim] = int(index[0]), len(index)
    return {"matrix": (state["matrix"].take(index, dim), Box(offset, shape, state["matrix"].shape)), "bias": state["bias"].copy()}


class Trainer(Actor):
    """Has some rows."""

    def __init__(self):
        self.rank, self.count = current_rank()["gpus"], current_rank().size("gpus")

    @endpoint
    def publish(self, name="policy", **options):
        self.state = part(whole(0), 0, self.count, self.rank)
        self.source = Weights.publish(name, self.state, **options)
        return self.source.version

    @endpoint
    def publish_when_refused(self, name="policy"):
        """Publishes after a reader has been refused."""
        refused, refusal = threading.Event(), published._refusal

        def refuse():
            refused.set()
            return refusal()

        published._refusal = refuse
        try:
            assert refused.wait(20)
        finally:
            published._refusal = refusal
        self.state = part(whole(0), 0, self.count, self.rank)
        self.source = Weights.publish(name, self.state)

    @endpoint
    def train(self, version=None):
        with self.source.update(version):
            self._fill(self.source.version + 1 if version is None else version)
        return self.source.version

    def _fill(self, version):
        new = part(whole(version), 0, self.count, self.rank)
        self.state["matrix"][0][:] = new["matrix"][0]
        self.state["bias"][:] = new["bias"]

    @endpoint
    def fail(self):
        try:
            with self.source.update():
                self._fill(-1)
                raise ArithmeticError
        except ArithmeticError:
            return self.source.version

    @endpoint
    def nested(self):
        with self.source.update():
            try:
                with self.source.update():
                    pass
            except RuntimeError as e:
                return str(e)
        return ""

    @endpoint
    def fork_and_train(self, within):
        """A child that updates, or that leaves an update which began before the fork; returns its error."""
        read, write = os.pipe()
        child, error = -1, ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the warning of a fork with threads
            if not within:
                child = os.fork()
            try:
                if within or child == 0:
                    with self.source.update():
                        self._fill(1)
                        if within:
                            child = os.fork()
            except RuntimeError as e:
                error = str(e)
        if child == 0:
            os.write(write, error.encode())
            os._exit(0)
        os.close(write)
        with open(read) as f:
            text = f.read()
        os.waitpid(child, 0)
        return text

    @endpoint
    def publish_flat(self, count, **options):
        """All numbers are the version; each rank has its part of them."""
        size = count // self.count
        self.flat = np.zeros(size, np.int64)
        self.source = Weights.publish("flat", {"flat": (self.flat, Box((size * self.rank,), (size,), (count,)))}, **options)

    @endpoint
    def limit_places(self, number):
        announcements._READERS = number

    @endpoint
    def train_flat(self, steps):
        for _ in range(steps):
            with self.source.update():
                self.flat[:] = self.source.version + 1
        return self.source.version

    @endpoint
    def train_until_stopped(self, port):
        self.go_on = True

        def run():
            while self.go_on:
                with self.source.update():
                    self.flat[:] = self.source.version + 1
            port.send(self.source.version)

        threading.Thread(target=run).start()

    @endpoint
    def stop_training(self):
        self.go_on = False

    @endpoint
    def waiting(self):
        """The number of requests that wait for a version."""
        return len(published._published["policy"]._waiting)

    @endpoint
    def overdue(self):
        return self.source.overdue

    @endpoint
    def leave_unfinished(self):
        """A version that is being written, for ever."""
        words = self.source.__core__._memories.words
        for i in range(len(words.values)):
            words[i] = word(5, WRITING)

    @endpoint
    def close(self):
        self.source.close()
        self.source.close()

    @endpoint
    def pid(self):
        return os.getpid()


def outcome(call):
    """The result, or the error as others can see it."""
    try:
        return call()
    except (RDMAError, TypeError, ValueError) as e:
        return type(e).__name__, str(e), getattr(e, "reason", None)


class ReadyTrainer(Trainer):
    """Publishes when it is made."""

    def __init__(self):
        super().__init__()
        self.state = part(whole(0), 0, self.count, self.rank)
        self.source = Weights.publish("policy", self.state)


class Generator(Actor):
    """Takes some columns."""

    def __init__(self):
        self.rank, self.count = current_rank()["gpus"], current_rank().size("gpus")

    @endpoint
    def attach(self, trainers, name="policy", dtype=None, **options):
        self.state = part(whole(-7), 1, self.count, self.rank)
        if dtype is not None:
            matrix, box = self.state["matrix"]
            self.state["matrix"] = matrix.astype(dtype), box
        self.target = Weights.attach(name, of=trainers, into=self.state, **options)
        return self.target.nbytes

    @endpoint
    def look_at_once(self):
        """Targets read the words of all sources as one batch, as they do with devices."""
        puller.is_for_hosts = lambda _: False

    @endpoint
    def attach_half(self, trainers, cast=False):
        self.count, self.rank = 2, 1
        self.state = part(whole(-7), 1, 2, 1)
        if cast:
            self.state["bias"] = self.state["bias"].astype(np.float32)
        self.target = Weights.attach("policy", of=trainers, into=self.state, cast=cast, fan_out=1)

    @endpoint
    def attach_outcome(self, trainers, name="policy", into=None, within=None, **options):
        def attach():
            with deadline(within):
                Weights.attach(name, of=trainers, into=whole(0) if into is None else into, **options)

        return outcome(attach)

    @endpoint
    def pull(self, timeout=60):
        return outcome(lambda: self.target.pull(timeout=timeout).get())

    @endpoint
    def version(self):
        """The version, and the one whose weights the tensors have; None for a mixture."""
        version = int(self.state["matrix"][0].flat[0] // 1000)
        wanted = part(whole(version), 1, self.count, self.rank)
        equal = (self.state["matrix"][0] == wanted["matrix"][0]).all() and (self.state["bias"] == wanted["bias"]).all()
        return self.target.version, version if equal else None

    @endpoint
    def wait(self, version):
        return outcome(lambda: self.target.wait(version).get(timeout=25))

    @endpoint
    def start_waiting(self, version):
        self.waiting = self.target.wait(version)

    @endpoint
    def give_up(self):
        """A wait with a time-out, one with a deadline, and the end of that of `start_waiting`."""
        with contextlib.suppress(TimeoutError):
            self.target.wait(100).get(timeout=0.1)
        with contextlib.suppress(TimeoutError), deadline(0.1):
            self.target.wait(100).get()
        del self.waiting

    @endpoint
    def waited(self):
        return self.waiting.get(timeout=25)

    @endpoint
    def two_at_once(self, times):
        futures = [self.target.pull() for _ in range(times)]
        return [future.get() for future in futures]

    @endpoint
    def cancelled(self):
        """A pull that is cancelled goes on; the next one waits for it."""

        async def run():
            task = asyncio.ensure_future(self.target.pull().as_asyncio())
            await asyncio.sleep(0)
            task.cancel()
            return await self.target.pull()

        return asyncio.run(run())

    @endpoint
    def attach_flat(self, trainers, count, **options):
        self.flat = np.full(count, -1, np.int64)
        self.target = Weights.attach("flat", of=trainers, into={"flat": self.flat}, **options)

    @endpoint
    def pull_flat(self, times, versions=1):
        """The versions that were seen, and whether each was whole; and how often a version had to be read anew.

        It pulls at least so many times, and until it has seen so many versions.
        """
        seen, good = [], True
        while len(seen) < times or len(set(seen)) < versions:
            version = self.target.pull().get()
            good = good and bool((self.flat == version).all())
            seen.append(version)
        return seen, good, self.target.__core__.retries

    @endpoint
    def parent(self):
        """The rank that this one reads from; None for the sources."""
        parent = self.target.__core__._parent
        assert parent._settled.wait(20)
        return None if parent._key is None or (parent._offer is None and parent._feed is None) else parent._key[0]

    @endpoint
    def proc(self):
        return int(member().proc)

    @endpoint
    def moved(self):
        """Bytes from the sources, and from other targets."""
        return self.target.from_sources, self.target.from_targets

    @endpoint
    def collect(self):
        """Ends the target, whose memory others read."""
        del self.target
        gc.collect()

    @endpoint
    def pull_until_it_fails(self, port):
        """Reports the first pull; at the end the error, and whether the tensors have the version of the target."""
        port.send(self.target.pull().get())
        while True:
            found = outcome(lambda: self.target.pull().get())
            if not isinstance(found, int):
                return *found, self.target.version is not None and bool((self.flat == self.target.version).all())

    @endpoint
    def announce(self):
        """As a reader that has begun, and never ends."""
        [feed] = self.target.__core__._feeds
        feed.announce(0, 10).get()

    @endpoint
    def pid(self):
        return os.getpid()
