"""Decisions after the failure of a rank, without clocks and processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from monarch.spmd.errors import FailureKind

Action = Literal["restart", "heal", "shrink", "stop"]

_KINDS = get_args(FailureKind)
_ACTIONS = get_args(Action)
_DEFAULT: dict[FailureKind, Action] = {
    "exception": "restart",
    "exit": "restart",
    "signal": "restart",
    "oom": "restart",
    "host_lost": "heal",
    "hang": "restart",
}


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The number of restarts of a run, and the action after each kind of failure.

    Args:
        max_restarts: restarts of the whole run.
        backoff: seconds before the first restart, which double with each further one, and their upper bound.
        min_hosts: the least number of hosts; None: the MIN of `--nnodes MIN:MAX`, and one for the action `shrink`.
        hang_timeout: seconds without output of any rank that count as a hang; None: a hang is not a failure.
        on: the action by kind of failure, such as `{"oom": "stop"}`; other kinds keep their default.

    Raises `ValueError` or `TypeError` with the name of the field.

    ```python
    from monarch.spmd import RestartPolicy

    policy = RestartPolicy(max_restarts=3, hang_timeout=600.0, on={"oom": "stop"})
    assert (policy.action("oom"), policy.action("host_lost")) == ("stop", "heal")
    ```
    """

    max_restarts: int = 0
    backoff: tuple[float, float] = (1.0, 30.0)
    min_hosts: int | None = None
    hang_timeout: float | None = None
    on: Mapping[FailureKind, Action] = field(default_factory=lambda: dict(_DEFAULT))

    def __post_init__(self) -> None:
        _check_count("max_restarts", self.max_restarts, 0)
        if self.min_hosts is not None:
            _check_count("min_hosts", self.min_hosts, 1)
        for name, value, kind in (("backoff", self.backoff, (tuple, list)), ("on", self.on, Mapping)):
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{name}={value!r}: not a {type(value).__name__}, see the documentation of RestartPolicy")
        if len(self.backoff) != 2:
            raise ValueError(f"backoff={self.backoff!r}: expected two numbers of seconds, the first delay and the longest one")
        for seconds in self.backoff:
            _check_seconds("backoff", seconds)
        if self.backoff[0] > self.backoff[1]:
            raise ValueError(f"backoff={self.backoff!r}: the first delay is longer than the longest one")
        if self.hang_timeout is not None:
            _check_seconds("hang_timeout", self.hang_timeout)
            if self.hang_timeout == 0:
                raise ValueError("hang_timeout=0: expected more than 0 seconds, or None")
        for kind, action in self.on.items():
            if kind not in _KINDS:
                raise ValueError(f"on[{kind!r}]: no such kind of failure, there is: {', '.join(_KINDS)}")
            if action not in _ACTIONS:
                raise ValueError(f"on[{kind!r}]={action!r}: expected {', '.join(_ACTIONS)}")

    def action(self, kind: FailureKind) -> Action:
        """The action after a failure of this kind."""
        return self.on.get(kind, _DEFAULT[kind])


class Decision(NamedTuple):
    """`action` is what happens, after `delay` seconds; for `stop`, `why` is the reason if it is not the policy's own.

    `grows`: the job is asked first whether hosts are there again that earlier attempts have lost.
    """

    action: Action
    delay: float = 0.0
    why: str = ""
    grows: bool = False


class Restarts:
    """The restarts of one run. `least` is the MIN of `--nnodes MIN:MAX`, if that is given and smaller than MAX."""

    def __init__(self, policy: RestartPolicy, least: int | None = None) -> None:
        self.policy = policy
        self.count = 0
        self._least = policy.min_hosts if policy.min_hosts is not None else least

    def after(self, kind: FailureKind, *, healthy: int = 1, can_heal: bool = False, missing: int = 0, is_full: bool = False) -> Decision:
        """The decision after a failure of this kind, with so many hosts that are not lost; counts the restart that it may be.

        `missing`: how many hosts earlier attempts have lost. `is_full`: spare hosts have the places of all lost ones, so that `heal` and
        `shrink` have nothing to do but to restart. `heal` without a job to ask becomes `shrink` where a least number of hosts is
        known and left. An action that the hosts do not allow ends the run: so does `restart` without a host that it would need.
        """
        action = self.policy.action(kind)
        if action == "stop":
            return Decision("stop")
        if self.count >= self.policy.max_restarts:
            return Decision("stop", why="" if not self.policy.max_restarts else f"all {self.policy.max_restarts} restarts are used up")
        has_lost = kind == "host_lost"
        if has_lost and is_full and action != "restart":
            action, has_lost = "restart", False
        if action == "heal" and not can_heal:
            if not self.has_least:
                return Decision("stop", why="the policy heals lost hosts, and this run knows no job that could replace them")
            action = "shrink"
        if action == "restart" and has_lost:
            return Decision("stop", why="a host is lost, and the policy restarts on the same hosts")
        if action == "shrink" and not self.is_enough(healthy):
            return Decision("stop", why=self.too_few(healthy))
        first, most = self.policy.backoff
        # The exponent is bounded: a float has no 2**1024.
        delay = min(most, first * 2.0 ** min(self.count, 64))
        self.count += 1
        return Decision(action, delay, grows=can_heal and missing > 0 and not is_full and action != "heal")

    @property
    def has_least(self) -> bool:
        """Whether a least number of hosts is given, with which a run that heals may go on as well."""
        return self._least is not None

    def is_enough(self, healthy: int) -> bool:
        """Whether the run may go on with so many hosts."""
        return healthy >= (self._least or 1)

    def too_few(self, healthy: int) -> str:
        return f"{healthy} {'host is' if healthy == 1 else 'hosts are'} left, and the run needs {self._least or 1}"


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: expected a number, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={value}: expected a number from {least} on")


def _check_seconds(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: expected seconds, not {type(value).__name__}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value}: expected a finite number of seconds from 0 on")
