"""The allocator of a collector: glibc's, asked to give back what is free; without glibc nothing of that happens."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator

import pytest

from monarch.telemetry._arrow import pa
from monarch.telemetry._collector import allocator


def _gives(library: object) -> Callable[[None], object]:
    def load(_: None) -> object:
        return library

    return load


@pytest.fixture
def pool() -> Generator[None, None, None]:
    before = pa.default_memory_pool()
    yield
    pa.set_memory_pool(before)


@pytest.mark.usefixtures("pool")
def test_columns_come_from_the_allocator_of_the_system() -> None:
    asked: list[tuple[int, ...]] = []

    class Library:
        def mallopt(self, *arguments: int) -> int:
            asked.append(arguments)
            return 1

        def malloc_trim(self, *arguments: int) -> int:
            asked.append(arguments)
            return 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", _gives(Library()))
        allocator.prepare()
        allocator.give_back()
    assert (pa.default_memory_pool().backend_name, asked) == ("system", [(-8, 2), (0,)])


def test_what_the_pool_of_columns_keeps_is_given_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Pool:
        def release_unused(self) -> None:
            asked.append("release_unused")

    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    monkeypatch.setattr(ctypes, "CDLL", _gives(object()))
    allocator.give_back()
    assert asked == ["release_unused"]


@pytest.mark.usefixtures("pool")
def test_a_library_without_these_functions_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", _gives(object()))
    allocator.prepare()
    allocator.give_back()
    assert pa.default_memory_pool().backend_name == "system"
