"""Looks into hosts as core gives them, made up."""

from __future__ import annotations

from typing import Any

RUNTIME = "/site/monarch/_x/actor.py"
START = [[RUNTIME, 144, "LocalActor._live"], ["/lib/python3.11/threading.py", 982, "Thread.run"]]
WAITING = [[RUNTIME, 209, "LocalActor._run_sync"], *START]
STEP = [["/srv/model.py", 71, "Model.forward"], ["/srv/train.py", 33, "Trainer.step"], *WAITING]


def thread(number: int, name: str | None, frames: list[list[Any]]) -> dict[str, Any]:
    return {"thread": number, "name": name, "frames": frames}


def proc(number: int, display: str, threads: list[dict[str, Any]] | None, **fields: Any) -> dict[str, Any]:
    """A proc of a look; None for the threads of one that has not answered."""
    answer = None if threads is None else {"uid": f"{number:016x}", "pid": 1000 + number, "threads": threads}
    found: dict[str, Any] = {
        "uid": f"{number:016x}",
        "pid": 1000 + number,
        "name": display,
        "state": "running",
        "silent": None,
        "evidence": None,
        "stacks": None,
    }
    return {**found, "kernel": "S", "answer": answer, **fields}


def worker(rank: int, of: int, *threads: dict[str, Any]) -> dict[str, Any]:
    return proc(rank + 1, f"<root>.<workers{{'gpus': {rank}/{of}}}>", list(threads))


def look(*procs: dict[str, Any]) -> dict[str, Any]:
    return {"host": "trainer-1", "procs": list(procs)}
