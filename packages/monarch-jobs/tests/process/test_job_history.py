"""Rows of `job_events`: what happened before an observer came waits for one, with its own time."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.extension import events
from monarch.job import FeatureHosts, JobFeature, Offer, ProcessJob, add_feature
from monarch.job._job import features

LIMIT = 20.0


class Pid(Actor):
    @endpoint
    def agent(self) -> int:
        return os.getsid(0)


class Plain(JobFeature):
    """A feature that keeps what it gets."""

    hosts: FeatureHosts | None = None

    def dump(self) -> dict[str, Any]:
        return {}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Plain:
        return cls()

    def start(self, hosts: FeatureHosts) -> Offer:
        type(self).hosts = hosts
        return Offer()

    def stop(self) -> None:
        pass


class Observer:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.rows: list[dict[str, Any]] = []
        self._observation = events.observe(self._take)

    def _take(self, batch: events.Batch) -> None:
        with self._changed:
            for event in batch.events:
                if event.name == "user.event" and event.fields["name"] == "job_events":
                    self.rows.append(json.loads(str(event.fields["fields"])))
            self._changed.notify_all()

    def until(self, title: str, *wanted: str) -> list[dict[str, Any]]:
        """The rows of a job, when it has these events in this order."""

        def found() -> list[dict[str, Any]]:
            return [row for row in self.rows if row["job"] == title]

        with self._changed:
            assert self._changed.wait_for(lambda: [row["event"] for row in found()] == list(wanted), LIMIT), self.rows
            return found()

    def stop(self) -> None:
        self._observation.stop()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessJob]:
    monkeypatch.setattr(features, "feature_class", lambda name: Plain)
    made = ProcessJob({"a": 2})
    yield made
    made.kill()


def test_earlier_events_are_reported_with_their_time(job: ProcessJob) -> None:
    assert not events.is_recording()
    add_feature(job, "plain")
    job.apply()
    title = job._title
    observer = Observer()
    try:
        while not events.is_recording():
            this_host()
        hosts = job.state().a
        submitted, attached = observer.until(title, "submitted", "attached")
        assert submitted["timestamp_us"] < attached["timestamp_us"]
        assert (submitted["kind"], attached["detail"], submitted.get("host")) == ("process", "a: 2", None)
        victim = hosts.slice(hosts=1).spawn_procs().spawn("pid", Pid).agent.call_one().get(20)
        os.kill(victim, signal.SIGKILL)
        lost = observer.until(title, "submitted", "attached", "host_lost")[-1]
        assert lost["host"] == os.uname().nodename and lost["detail"].startswith("a[1]: ")
        assert Plain.hosts is not None and Plain.hosts.control is not None
        # A feature may do this to its job.
        report = Plain.hosts.control.heal(timeout=60.0)
        assert len(report.restarted) + len(report.replaced) == 1
        healed = observer.until(title, "submitted", "attached", "host_lost", "replaced")[-1]
        assert healed["detail"] == "a[1]"
        assert (Plain.hosts.control.title, Plain.hosts.control.apply_id) == (title, job.apply_id)
        Plain.hosts.control.kill()
        assert not job.active
        observer.until(title, "submitted", "attached", "host_lost", "replaced", "killed")
    finally:
        observer.stop()


def test_events_without_an_observer_are_bounded(job: ProcessJob) -> None:
    history = job.__core__.history
    for number in range(300):
        history.add(job, "looked", detail=str(number))
    assert len(history._waiting) == 100 and history._waiting[-1]["detail"] == "299"
