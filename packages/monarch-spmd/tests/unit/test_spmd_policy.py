"""Decisions after failures."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.spmd import RestartPolicy
from monarch.spmd.policy import Decision, Restarts


def test_nothing_is_restarted_by_default() -> None:
    assert Restarts(RestartPolicy()).after("exception") == Decision("stop")


def test_delays_double_up_to_the_longest() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=6, backoff=(1.0, 5.0)))
    assert [restarts.after("signal").delay for _ in range(6)] == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert restarts.after("signal") == Decision("stop", why="all 6 restarts are used up")


def test_delay_after_very_many_restarts() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=5000, backoff=(0.5, 30.0)))
    assert {restarts.after("exit").delay for _ in range(5000)} == {0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0}


@pytest.mark.parametrize("kind", ["exception", "exit", "signal", "oom", "hang"])
def test_failures_of_programs_are_restarted(kind: Any) -> None:
    assert Restarts(RestartPolicy(max_restarts=1)).after(kind).action == "restart"


def test_lost_host_needs_a_job_that_heals() -> None:
    policy = RestartPolicy(max_restarts=1)
    assert Restarts(policy).after("host_lost", can_heal=True).action == "heal"
    decision = Restarts(policy).after("host_lost")
    assert decision.action == "stop" and "no job" in decision.why


def test_lost_host_is_not_there_for_a_restart() -> None:
    decision = Restarts(RestartPolicy(max_restarts=1, on={"host_lost": "restart"})).after("host_lost", missing=1, can_heal=True)
    assert decision == Decision("stop", why="a host is lost, and the policy restarts on the same hosts")


@pytest.mark.parametrize("kind", ["exception", "exit", "signal", "oom", "hang"])
@pytest.mark.parametrize(("can_heal", "missing", "grows"), [(True, 1, True), (True, 0, False), (False, 2, False)])
def test_lost_hosts_are_requested_at_each_restart(kind: Any, can_heal: bool, missing: int, grows: bool) -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2))
    for _ in range(2):
        decision = restarts.after(kind, can_heal=can_heal, missing=missing)
        assert (decision.action, decision.grows) == ("restart", grows)
    assert not restarts.after(kind, can_heal=can_heal, missing=missing).grows


def test_first_loss_shrinks_and_the_next_one_grows() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2, on={"host_lost": "shrink"}))
    assert restarts.after("host_lost", healthy=2, can_heal=True) == Decision("shrink", 1.0)
    assert restarts.after("host_lost", healthy=1, can_heal=True, missing=1) == Decision("shrink", 2.0, grows=True)


def test_heal_asks_the_job_anyway() -> None:
    assert Restarts(RestartPolicy(max_restarts=1)).after("host_lost", can_heal=True, missing=1) == Decision("heal", 1.0)


@pytest.mark.parametrize("action", ["heal", "shrink"])
@pytest.mark.parametrize("can_heal", [True, False])
def test_spare_hosts_leave_nothing_to_heal(action: Any, can_heal: bool) -> None:
    restarts = Restarts(RestartPolicy(max_restarts=1, on={"host_lost": action}))
    found = restarts.after("host_lost", healthy=2, can_heal=can_heal, missing=1, is_full=True)
    assert found == Decision("restart", 1.0)
    assert restarts.after("host_lost", healthy=2, is_full=True).action == "stop"


@pytest.mark.parametrize("action", ["restart", "stop"])
def test_spare_hosts_change_no_other_action(action: Any) -> None:
    restarts = Restarts(RestartPolicy(max_restarts=1, on={"host_lost": action}))
    assert restarts.after("host_lost", healthy=2, is_full=True).action == "stop"


def test_kinds_that_are_left_out_keep_their_action() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2, on={"exit": "stop"}))
    assert restarts.after("exit").action == "stop"
    assert restarts.after("exception").action == "restart"
    assert restarts.count == 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_restarts": -1}, ValueError, "max_restarts=-1"),
        ({"max_restarts": "3"}, TypeError, "max_restarts='3'"),
        ({"max_restarts": True}, TypeError, "max_restarts=True"),
        ({"min_hosts": 0}, ValueError, "min_hosts=0"),
        ({"backoff": (2.0, 1.0)}, ValueError, "the first delay is longer"),
        ({"backoff": (1.0,)}, ValueError, "expected two numbers"),
        ({"backoff": (float("nan"), 1.0)}, ValueError, "backoff=nan"),
        ({"hang_timeout": 0}, ValueError, "hang_timeout=0"),
        ({"hang_timeout": float("inf")}, ValueError, "hang_timeout=inf"),
        ({"on": {"crash": "restart"}}, ValueError, "no such kind of failure, there is: exception"),
        ({"on": {"exit": "retry"}}, ValueError, "expected restart, heal, shrink, stop"),
    ],
)
def test_bad_values_are_named(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        RestartPolicy(**arguments)
