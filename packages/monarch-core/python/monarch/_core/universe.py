"""A world of its own for a test: time that stands still until everything is idle, then jumps to what is due next."""

from __future__ import annotations

from monarch._core._native import Simulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class UniverseClock:
    """The time of a universe; `now()` gives seconds since its beginning."""

    __slots__ = ("_simulation",)

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def now(self) -> float:
        return self._simulation.now()


class Universe:
    """Runs what is due, in order of time and at one time in the order of `later`, on the thread that asks; hours pass in microseconds.

    No universe knows of another one, nor of this process's client.
    """

    __slots__ = ("_simulation", "clock")

    def __init__(self) -> None:
        self._simulation = Simulation()
        self.clock = UniverseClock(self._simulation)

    def later(self, delay: float, function: Callable[[], object]) -> None:
        """Runs `function()` when `delay` seconds have passed; `ValueError` if that is negative, NaN or infinite."""
        self._simulation.later(delay, function)

    def run_until_idle(self) -> None:
        """Runs until nothing is left to do; then raises the first error that a function has raised."""
        self._simulation.run()

    def run_for(self, seconds: float) -> None:
        """Runs what is due within so many seconds, which then have passed; errors as in `run_until_idle`."""
        self._simulation.run_for(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.run_until_idle()
