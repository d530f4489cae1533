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
