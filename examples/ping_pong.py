"""Two meshes that call each other: every player of one side plays its own opponent of the other, and the client only watches."""

from __future__ import annotations

import argparse
import time

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host

PAIRS = 2


class Player(Actor):
    """Hits the ball back until the rally is over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hits = 0

    @endpoint
    def meet(self, opponents: Player) -> None:
        # An actor mesh is an argument like any other. The receiver gets a handle that calls the same actors.
        self.pair = current_rank().rank
        self.opponent = opponents.slice(pairs=self.pair)

    @endpoint
    def hit(self, left: int, over: Port[str]) -> None:
        self.hits += 1
        if left == 0:
            over.send(f"pair {self.pair}: {self.name} hit last")
        else:
            # `broadcast` has no answer to wait for, so this player is free when the ball comes back.
            self.opponent.hit.broadcast(left - 1, over)

    @endpoint
    def count(self) -> int:
        return self.hits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="shorter rallies")
    hits = 100 if parser.parse_args().quick else 2000

    pingers = this_host().spawn_procs(per_host={"pairs": PAIRS}).spawn("pingers", Player, "ping")
    pongers = this_host().spawn_procs(per_host={"pairs": PAIRS}).spawn("pongers", Player, "pong")

    # All pairs must have met before the first ball flies.
    met = [pingers.meet.call(pongers), pongers.meet.call(pingers)]
    for one in met:
        one.get()

    port, receiver = Channel[str].open()
    start = time.perf_counter()
    pingers.hit.broadcast(hits - 1, port)
    for _ in range(PAIRS):
        print(receiver.recv().get())
    seconds = time.perf_counter() - start

    played = sum(pingers.count.call().get().values()) + sum(pongers.count.call().get().values())
    print(f"{played} hits in {PAIRS} rallies of {hits}: {seconds / hits * 1e6:.0f} us from one player to the other")


if __name__ == "__main__":
    main()
