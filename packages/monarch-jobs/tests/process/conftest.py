"""Jobs that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.job import JobTrait


@pytest.fixture
def ended() -> Iterator[Callable[[Any], Any]]:
    """Kills what a test has made, when it is over."""
    made: list[JobTrait] = []

    def remember(job: Any) -> Any:
        made.append(job)
        return job

    yield remember
    for job in made:
        job.kill()
