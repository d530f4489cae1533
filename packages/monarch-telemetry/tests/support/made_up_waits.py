"""Snapshots written by hand: actors of a mesh, one in each process, with what they do and wait for."""

from __future__ import annotations

from monarch.telemetry._diagnose.snapshot import Actor, Frame, Host, Proc, Snapshot, Thread, Wait

CLIENT = Proc("c", "a", 1, "client", threads=(Thread(1, "MainThread", (Frame("/srv/run.py", 9, "main"),)),))


def proc(uid: str, rank: int = 0, size: int = 1, host: str = "a") -> Proc:
    frames = (Frame(f"/srv/{uid}.py", 10 + rank, "step"),)
    return Proc(
        uid,
        host,
        100 + rank,
        f"<root>.<workers{{'gpus': {rank}/{size}}}>",
        "workers",
        rank,
        size,
        threads=(Thread(7, "actor", frames, True),),
    )


def actor(uid: str, name: str, doing: str | None = "step", seconds: float = 41.0, rank: int | None = None, size: int = 1) -> Actor:
    return Actor(uid, f"m{name}", name, "srv.Actor", rank, size, doing, seconds, thread=7)


def wait(uid: str, name: str, target: str, endpoint: str = "give") -> Wait:
    """The actor of process `uid` waits for the actor `name` of process `target`."""
    return Wait(uid, 7, True, 5, endpoint, name, f"m{name}", 1, 1, ((0, target),))


def circle(*names: str) -> Snapshot:
    """Each of these actors waits for the next one, and the client for the first."""
    procs = tuple(proc(f"p{name}") for name in names)
    waits = tuple(wait(f"p{name}", after, f"p{after}") for name, after in zip(names, (*names[1:], names[0]), strict=True))
    main = Wait("c", 1, True, 1, "step", names[0], f"m{names[0]}", 1, 1, ((0, f"p{names[0]}"),))
    return Snapshot((CLIENT, *procs), tuple(actor(f"p{name}", name) for name in names), (Host("a"),), (*waits, main))
