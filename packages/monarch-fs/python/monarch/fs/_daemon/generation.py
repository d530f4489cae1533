"""Which generation each host shows: the agreement on a refresh, without input or output.

A refresh is a round with a number. `Rollout` stages the new table on every current host. When all have staged, the refresh is decided, and
each host commits; when one fails or is lost before, all abort and the outcome names it. After the decision there is no way back: a host
that is lost is not waited for, and gets the whole table (`OPEN`) when it returns; a host whose commit fails gets it at once.

The hosts have no agreement of their own: their service carries out the steps in the order in which they were sent, a step that is
repeated has no further effect, and a service that was replaced has no mount until it gets the whole table. Answers of an earlier round
have no effect.

It is driven by events and returns the steps that the caller carries out, in order. The trade-off of two phases: a refresh needs every
current host, so one host that cannot stage stops it for all; in exchange no refresh leaves hosts with different generations."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Do(Enum):
    """What the client's side asks its caller to do."""

    # Send the difference to the host, which prepares it.
    STAGE = "stage"
    COMMIT = "commit"
    ABORT = "abort"
    # Send the complete table; the host shows it as soon as possible.
    OPEN = "open"
    # Unmount the host: it cannot show the committed generation.
    CLOSE = "close"
    # The refresh has ended; the step has the outcome.
    FINISH = "finish"


class Outcome(NamedTuple):
    """The end of a refresh."""

    generation: str
    # Whether the generation was committed.
    committed: bool
    # Hosts that did not follow, each with the reason: why nothing was committed, or which hosts have an older generation.
    failures: dict[str, str]


class Step(NamedTuple):
    do: Do
    host: str
    round: int
    generation: str
    outcome: Outcome | None = None


class _Place(Enum):
    """Where a host stands, as far as the client has learned."""

    CURRENT = "current"
    # The complete table was sent to it.
    OPENING = "opening"
    LOST = "lost"


class Rollout:
    """The client's side, for the life of a mount.

    Example:
        rollout = Rollout("generation 1", ["host 0"])
        assert [step.do for step in rollout.start("generation 2")] == [Do.STAGE]
        assert [step.do for step in rollout.staged("host 0", 1)] == [Do.COMMIT]
        assert rollout.shown("host 0", 1)[0].outcome == Outcome("generation 2", True, {})
    """

    def __init__(self, generation: str, hosts: Iterable[str] = ()) -> None:
        """All `hosts` show `generation`, as round 0."""
        self.generation = generation
        self.round = 0
        self._places = dict.fromkeys(hosts, _Place.CURRENT)
        # The highest number of a started round.
        self._started = 0
        self._target: str | None = None
        self._members: set[str] = set()
        # Hosts with a pending answer to the refresh; None without a refresh.
        self._pending: set[str] | None = None
        self._failures: dict[str, str] = {}

    @property
    def busy(self) -> bool:
        """Whether a refresh is under way, decided or not."""
        return self._pending is not None

    def behind(self) -> list[str]:
        """Hosts that do not show the decided generation: lost ones, and ones that open it."""
        return [host for host, place in self._places.items() if place is not _Place.CURRENT]

    def start(self, generation: str) -> list[Step]:
        """Begins a refresh; `ValueError` while another one is under way."""
        if self._pending is not None:
            raise ValueError(f"the refresh to {self._target or self.generation} is under way")
        self._started += 1
        self._target, self._failures = generation, {}
        self._members = {host for host, place in self._places.items() if place is _Place.CURRENT}
        self._pending = set(self._members)
        if not self._pending:
            return self._decide()
        return [Step(Do.STAGE, host, self._started, generation) for host in sorted(self._pending)]

    def staged(self, host: str, round: int) -> list[Step]:
        if self._target is None or self._pending is None or round != self._started:
            return []
        self._pending.discard(host)
        return [] if self._pending else self._decide()

    def failed(self, host: str, round: int, reason: str) -> list[Step]:
        """The host cannot stage, commit or open this round."""
        if self._target is not None and round == self._started:
            return self._abort({host: reason}) if host in self._members else []
        place = self._places.get(host)
        if round != self.round or place is None or place is _Place.LOST:
            return []
        if place is _Place.CURRENT:
            if self._pending is None or host not in self._pending:
                return []
            self._places[host] = _Place.OPENING
            return [self._open(host)]
        self._failures[host] = reason
        self._places[host] = _Place.LOST
        return [Step(Do.CLOSE, host, self.round, self.generation), *self._answered(host)]

    def shown(self, host: str, round: int) -> list[Step]:
        """The host shows the generation of this round."""
        if round != self.round or self._places.get(host) in (None, _Place.LOST):
            return []
        self._places[host] = _Place.CURRENT
        return self._answered(host) if self._target is None else []

    def lost(self, host: str) -> list[Step]:
        """The host cannot be reached; it is not waited for until `returned`."""
        if self._places.get(host) in (None, _Place.LOST):
            return []
        self._places[host] = _Place.LOST
        if self._target is not None:
            return self._abort({host: "the host was lost"}) if host in self._members else []
        if self._pending is not None and host in self._pending:
            self._failures[host] = "the host was lost"
        return self._answered(host)

    def returned(self, host: str) -> list[Step]:
        """A host is there, again or for the first time, and shows nothing."""
        steps: list[Step] = []
        if self._target is not None and host in self._members:
            # This is another process than the one that was asked to stage.
            steps = self._abort({host: "the host was lost"})
        self._places[host] = _Place.OPENING
        return [*steps, self._open(host)]

    def cancel(self, reason: str) -> list[Step]:
        """Aborts a refresh that is not decided: a time-out, or the caller gave up. Without effect after the decision."""
        waiting = sorted(self._pending or ())
        return self._abort(dict.fromkeys(waiting, reason)) if self._target is not None else []

    def _open(self, host: str) -> Step:
        return Step(Do.OPEN, host, self.round, self.generation)

    def _decide(self) -> list[Step]:
        assert self._target is not None
        self.generation, self.round, self._target = self._target, self._started, None
        steps: list[Step] = []
        self._pending = set()
        for host, place in self._places.items():
            if place is _Place.LOST:
                continue
            self._pending.add(host)
            if place is _Place.CURRENT and host in self._members:
                steps.append(Step(Do.COMMIT, host, self.round, self.generation))
            else:
                # The host joined while the others staged.
                self._places[host] = _Place.OPENING
                steps.append(self._open(host))
        return steps or self._finish(True)

    def _abort(self, failures: dict[str, str]) -> list[Step]:
        assert self._target is not None
        self._failures = failures
        steps = [
            Step(Do.ABORT, host, self._started, self._target) for host in sorted(self._members) if self._places.get(host) is not _Place.LOST
        ]
        return [*steps, *self._finish(False)]

    def _answered(self, host: str) -> list[Step]:
        if self._pending is None or self._target is not None:
            return []
        self._pending.discard(host)
        return [] if self._pending else self._finish(True)

    def _finish(self, committed: bool) -> list[Step]:
        generation = self.generation if committed else self._target or ""
        self._target, self._pending, self._members = None, None, set()
        return [Step(Do.FINISH, "", self._started, generation, Outcome(generation, committed, self._failures))]
