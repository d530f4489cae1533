"""Core's verbs on the hosts of the current job, whose workers are processes of this machine that play other ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from command import monarch
from worker_processes import Workers

from monarch.job import AttachJob
from monarch.job._cli.reach import on_hosts


@pytest.fixture
def current(folder: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """The current job has a host that answers, and one with a name that there is not."""
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: None)
    with Workers(1, "tls") as workers:
        hosts = {"a": [*workers.addresses, "tcp://no-such-host.invalid:4"]}
        AttachJob(hosts, credentials=str(workers.secret)).state()
        yield workers


@pytest.mark.usefixtures("current")
def test_unreachable_host_hides_no_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.job._host.monarch_command.machine", lambda: "another machine")
    good, bad = on_hosts(["ps", "--here"])
    # The exit code covers all jobs of this machine.
    assert (good.hosts, good.error) == ("a[0]", "") and re.search(r"\bagent\b", good.output)
    assert (bad.hosts, bad.code, bad.output) == ("a[1]", 1, "") and bad.error.startswith("monarch: a[1]: "), bad


@pytest.mark.usefixtures("current")
def test_only_the_bad_host_is_named() -> None:
    code, out, err = monarch("ps")
    # The other host is on this machine, and listed with it.
    assert code == 1 and re.search(r"\bagent\b", out) and "monarch: a[1]: " in err
    assert "=== a[0]" not in out and "monarch: a[0]" not in err


@pytest.mark.usefixtures("current")
def test_failed_verb_of_a_host_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.job._host.monarch_command.machine", lambda: "another machine")
    good, _ = on_hosts(["no-such-verb"])
    assert good.code == 1 and good.error.startswith("monarch: a[0]: `monarch no-such-verb` ended with exit code 2 there: "), good
