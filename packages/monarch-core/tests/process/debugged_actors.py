"""Actors that stop at breakpoints, and a plain line client of the debug server."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

from monarch.actor import Actor, concurrent_endpoint, current_rank, debug_controller, endpoint

PROMPT = "monarch_dbg> "
PDB = "(Pdb) "


class Worker(Actor):
    @endpoint
    def step(self, x):
        y = x + current_rank().rank
        breakpoint()  # in step
        y = self.double(y)
        return y

    def double(self, y):
        y = y * 2
        return y

    @endpoint
    def fail(self, wrong):
        breakpoint()
        if current_rank().rank in wrong:
            self.explode("bad rank")
        return "fine"

    @endpoint
    def fail_at_once(self):
        self.explode("no breakpoint")

    def explode(self, text):
        raise ValueError(text)

    @endpoint
    def twice(self):
        breakpoint(header="the first")
        word = "between"
        breakpoint(header="the second")
        return word

    @endpoint
    def nested(self):
        breakpoint()
        return self.double(1)

    def stop_again(self):
        breakpoint()
        return "went on"

    @endpoint
    def in_thread(self):
        found = []

        def body():
            breakpoint()
            found.append("from a thread")

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return found

    @endpoint(explicit_response_port=True)
    def through_port(self, port):
        breakpoint()
        port.send("sent")

    @endpoint
    def print_both(self):
        breakpoint()
        print("on the console")
        return None

    @endpoint
    def pid(self):
        return os.getpid()


class AsyncWorker(Actor):
    @endpoint
    async def step(self, x):
        breakpoint()
        await asyncio.sleep(0)
        x += 1
        return x

    @concurrent_endpoint
    async def beside(self, fail):
        await asyncio.sleep(0)
        breakpoint()
        await asyncio.sleep(0)
        if fail:
            raise KeyError("beside")
        return "beside"

    @endpoint
    async def in_task(self):
        async def body():
            breakpoint()
            return "from a task"

        found = await asyncio.ensure_future(body())
        return found

    @endpoint
    async def fail_in_task(self):
        async def body():
            breakpoint()
            raise KeyError("task")

        await asyncio.ensure_future(body())

    @endpoint
    async def pid(self):
        return os.getpid()


class Initial(Actor):
    def __init__(self, fail):
        breakpoint()
        self.word = "built"
        if fail:
            raise ValueError("in __init__")

    @endpoint
    def read(self):
        return self.word


class Plain(Actor):
    """Has no breakpoint."""

    @endpoint
    def answer(self):
        return 42


class DebugLine:
    """A plain line client of the debug server, like `nc`: sends lines, reads up to a prompt."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, 20)
        self.seen = ""
        self.greeting = self.until(PROMPT)

    def until(self, end):
        """The output up to and without `end`, which must come."""
        while end not in self.seen:
            data = self.socket.recv(1 << 16)
            assert data, f"ended before {end!r}: {self.seen}"
            self.seen += data.decode()
        before, _, self.seen = self.seen.partition(end)
        return before

    def send(self, line):
        self.socket.sendall(f"{line}\n".encode())

    def ask(self, line, prompt=PROMPT):
        self.send(line)
        return self.until(prompt)

    def rest(self):
        """The output until the server closes the connection."""
        while data := self.socket.recv(1 << 16):
            self.seen += data.decode()
        return self.seen

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def sessions(count=1):
    """Waits until `count` sessions stand, and lists them."""
    debug_controller().wait_pending_sessions.call_one(count).get()
    return debug_controller().list.call_one(print_output=False).get()


def ranks_of(text):
    """The ranks in a table."""
    return [int(row.split()[1]) for row in text.splitlines()[2:]]
