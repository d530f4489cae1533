"""When a keeper finds that its job is over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from monarch.job._job import saved
from monarch.job._keeper import kept_job
from monarch.job._keeper.kept_job import KeptJob
from monarch.job.process import ProcessJob


def test_host_end_before_its_process_end_is_found(monkeypatch: Any) -> None:
    """Its sockets close first: the only look after that would be the one of the next minute."""
    phases = iter(["ready", "ready"])
    looks: list[str] = []

    class Slow(KeptJob):
        def __init__(self) -> None:
            super().__init__(saved.encode(ProcessJob({"a": 1})).decode(), None, ())
            self.job: Any = SimpleNamespace(status=self.status)

        def status(self) -> Any:
            looks.append(next(phases, "lost"))
            return SimpleNamespace(phase="ready", detail="", hosts=[SimpleNamespace(phase=looks[-1])])

    monkeypatch.setattr(kept_job, "AGAIN_SECONDS", 0.001)
    ended = threading.Event()
    job = Slow()
    job.watch(lambda why: ended.set())
    job._news.set()
    assert ended.wait(25.0)
    assert looks == ["ready", "ready", "lost"]
