"""The smallest program: four processes, one actor in each, one call that reaches them all."""

from __future__ import annotations

import os

from monarch.actor import Actor, current_rank, endpoint, this_host


class Greeter(Actor):
    """An actor is an object with a process and a thread of its own; its endpoints are the methods that others may call."""

    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.number = current_rank().rank

    @endpoint
    def greet(self, name: str) -> str:
        return f"{self.greeting}, {name}! This is greeter {self.number}."

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def main() -> None:
    # Four processes on this machine, along one dimension with the name "gpus" (no GPU is needed).
    procs = this_host().spawn_procs(per_host={"gpus": 4})

    # One Greeter in each. The result is a handle to all four, typed as the class.
    greeters = procs.spawn("greeters", Greeter, "Hello")

    # `call` sends the same message to all and returns a Future; `get` waits for the four answers.
    for point, answer in greeters.greet.call("world").get().items():
        print(f"{point}: {answer}")

    # A slice is a handle to some of them.
    print(greeters.slice(gpus=2).greet.call_one("reader").get())

    pids = set(greeters.pid.call().get().values())
    print(f"{len(pids)} different processes, none of them this one: {os.getpid() not in pids}")

    # There is nothing to close: all actors and processes end with the script.


if __name__ == "__main__":
    main()
