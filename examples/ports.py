"""Ports: many messages for one call, from any thread, to the process with the receiving end."""

from __future__ import annotations

import threading

from monarch.actor import Actor, Channel, Port, PortReceiver, current_rank, endpoint, this_host

STEPS = 4


class Simulation(Actor):
    """Works in a thread of its own, so that it can handle calls meanwhile."""

    @endpoint
    def start(self, progress: Port[tuple[int, int]]) -> str:
        rank = current_rank().rank
        self.proceed = threading.Event()
        self.thread = threading.Thread(target=self._work, args=(rank, progress), daemon=True)
        self.thread.start()
        return f"simulation {rank} started"

    def _work(self, rank: int, progress: Port[tuple[int, int]]) -> None:
        for step in range(STEPS):
            if step == STEPS // 2:
                self.proceed.wait()
            progress.send((rank, step))  # the thread is not the actor's, and yet sends as this actor

    @endpoint
    def resume(self) -> None:
        self.proceed.set()

    # An endpoint that answers later gets the port of its caller, and may keep the port or send it on.
    @endpoint(explicit_response_port=True)
    def finished(self, answer: Port[str]) -> None:
        rank = current_rank().rank

        def wait() -> None:
            self.thread.join()
            answer.send(f"simulation {rank} finished")

        threading.Thread(target=wait, daemon=True).start()


def collect(receiver: PortReceiver[tuple[int, int]], count: int, seen: list[tuple[int, int]]) -> None:
    """Receives in a thread of the client, because the main thread has other work."""
    for _ in range(count):
        seen.append(receiver.recv().get())


def main() -> None:
    simulations = this_host().spawn_procs(per_host={"gpus": 2}).spawn("simulations", Simulation)

    # A channel has two ends: the port travels to the senders, the receiver stays here.
    port, receiver = Channel[tuple[int, int]].open()
    for answer in simulations.start.call(port).get().values():
        print(answer)

    seen: list[tuple[int, int]] = []
    half = threading.Thread(target=collect, args=(receiver, 2 * STEPS // 2, seen))
    half.start()
    half.join()
    print(f"half-way: {sorted(seen)}")

    done = simulations.finished.call()  # answered when the threads have ended
    simulations.resume.broadcast()
    collect(receiver, 2 * STEPS // 2, seen)
    print(f"all: {sorted(seen)}")
    for rank in range(2):
        steps = [step for sender, step in seen if sender == rank]
        print(f"from simulation {rank} in the order sent: {steps == sorted(steps)}")
    for answer in done.get().values():
        print(answer)


if __name__ == "__main__":
    main()
