"""Actors that the tests of meshes spawn. This module imports nothing of the test framework, for which every process would pay."""

from __future__ import annotations

import os
import signal
import sys

from monarch.actor import Actor, Channel, SupervisionError, context, current_rank, current_size, endpoint, this_host, this_proc


class Probe(Actor):
    """Inspects its own process."""

    def __init__(self, *kept):
        self.kept = kept

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def evaluate(self, expression, *args):
        import importlib

        space = {name: importlib.import_module(name) for name in ("gc", "os", "signal", "sys", "threading", "time")}
        return eval(expression, {**space, "self": self, "args": args, "context": context})

    @endpoint
    def rank(self):
        return current_rank(), current_size(), context().actor_instance.rank

    @endpoint
    def environment(self, *names):
        return [os.environ.get(name) for name in names]

    @endpoint
    def setting(self, name):
        from monarch.config import get_global_config

        return get_global_config()[name]

    @endpoint
    def say(self, *texts):
        for text in texts:
            print(text)

    @endpoint
    def complain(self, text):
        print(text, file=sys.stderr)

    @endpoint
    def write(self, data, fd=1):
        os.write(fd, data)

    @endpoint
    def say_and_die(self, text):
        print(text)
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def echo(self, *values):
        return values[0] if len(values) == 1 else values

    @endpoint
    def length(self, value):
        return len(value)

    @endpoint
    def keep(self, *values):
        self.kept = values

    @endpoint
    def kept_values(self):
        return self.kept

    @endpoint
    def fail(self):
        raise ValueError("on purpose")

    @endpoint
    def try_on_references(self, mesh):
        """The errors of stop, shutdown and sync on a handle that is a reference."""
        import asyncio

        found = []
        for action in (lambda: mesh.stop(), lambda: this_host().stop(), lambda: this_host().shutdown(), lambda: this_proc().stop()):
            try:
                action()
                found.append("no error")
            except Exception as e:
                found.append(f"{type(e).__name__}: {e}")
        try:
            asyncio.run(this_host().sync_workspace(None))
        except Exception as e:
            found.append(type(e).__name__)
        return found

    @endpoint
    def spawn_there(self, procs, *args):
        """Spawns on a mesh that another process owns, and returns the owner that it sees."""
        self.mine = procs.spawn("grandchild", Probe, *args)
        return self.mine, self.mine.pid.call().get()

    @endpoint
    def spawn_only(self, procs):
        self.mine = procs.spawn("grandchild", Probe)
        return self.mine

    @endpoint
    def call_on_or_text(self, mesh, method, *args):
        try:
            return getattr(mesh, method).call(*args).get()
        except SupervisionError as e:
            return str(e)

    @endpoint
    def flood(self, mesh, size, count):
        try:
            for _ in range(count):
                mesh.length.broadcast(bytes(size))
        except SupervisionError:
            return "SupervisionError"
        return "sent"

    @endpoint
    def freeze_and_look(self, mesh, pid):
        from monarch.actor.testing import fault

        with fault(mesh, "freeze"), open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(") ")[2].split()[0]

    @endpoint
    def stop_mine(self):
        self.mine.stop().get()

    @endpoint
    def call_on(self, mesh, method, *args):
        return getattr(mesh, method).call(*args).get()


class Counter(Actor):
    def __init__(self, start=0):
        self.value = start

    @endpoint
    def add(self, n=1):
        self.value += n
        return self.value

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def display(self):
        return str(context().actor_instance)

    @endpoint
    def die(self):
        raise SystemExit(3)


class Recorder(Actor):
    def __init__(self):
        self.items = []

    @endpoint
    def put(self, item):
        self.items.append(item)

    @endpoint
    def put_sized(self, item, data):
        self.items.append((item, len(data)))

    @endpoint
    def taken(self):
        items, self.items = self.items, []
        return items


class PortUser(Actor):
    def __init__(self, port=None):
        self.port = port
        self.returned = []

    @endpoint
    def send(self, port, *values):
        for value in values:
            port.send(value)

    @endpoint
    def send_exception(self, port, text):
        port.exception(ValueError(text))

    @endpoint
    def send_kept(self, value):
        self.port.send(value)

    @endpoint
    def open(self):
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def receive(self):
        return self.receiver.recv().get()

    @endpoint
    def close(self):
        import gc

        del self.receiver
        gc.collect()

    @endpoint
    def had_client(self):
        from monarch._core.process.current import known_process

        process = known_process()
        return process is not None and process.is_client

    def _handle_undeliverable_message(self, envelope):
        self.returned.append((envelope.sender(), envelope.dest(), envelope.error_msg()))
        return True

    @endpoint
    def came_back(self):
        return self.returned
