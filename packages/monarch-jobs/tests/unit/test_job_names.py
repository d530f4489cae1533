"""The facade: names are loaded on first use, and a name that is not there yet is refused with its reason."""

from __future__ import annotations

from importlib import import_module

import pytest

import monarch.job
from monarch.job import BackendMissingError


def test_every_name_is_where_the_table_says() -> None:
    for name in monarch.job.__all__:
        found = getattr(monarch.job, name)
        assert getattr(found, "__module__", "monarch.job").startswith("monarch.job")
    assert set(monarch.job.__all__) == set(dir(monarch.job))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = monarch.job.nothing


@pytest.mark.parametrize("name", ["kubernetes", "skypilot", "spmd", "torchx"])
def test_backends_to_come(name: str) -> None:
    with pytest.raises(BackendMissingError, match="this version of monarch-jobs has no .* backend") as found:
        import_module(f"monarch.job.{name}")
    assert isinstance(found.value, ImportError)
    assert found.value.hint == "it comes with a later release"
