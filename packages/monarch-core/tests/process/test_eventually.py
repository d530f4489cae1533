"""A failure of `eventually` names the awaited condition."""

from __future__ import annotations

import pytest
from eventually import eventually
from fresh_script import run


def test_result_that_holds_is_returned():
    seen = iter(range(10))
    assert eventually("three", lambda: next(seen), lambda n: n >= 3) == 3


def test_awaited_condition_is_named_on_timeout():
    with pytest.raises(AssertionError, match="not within 0 s") as failed:
        eventually("a host joins", lambda: ["no host"], lambda found: len(found) == 2, seconds=0.0)
    assert failed.value.__notes__ == ["waited for: a host joins; last seen: ['no host']"]


def test_limit_of_pytest_is_named_too():
    """The exception of pytest's limit is no `Exception`, and comes from a signal handler at any place."""

    def look() -> None:
        pytest.fail("Timeout (>30.0s) from pytest-timeout")

    with pytest.raises(pytest.fail.Exception) as failed:
        eventually("a host joins", look)
    assert failed.value.__notes__ == ["waited for: a host joins; last seen: None"]


def test_scripts_have_it():
    run("say(eventually('a word', lambda: 'now'))").assert_clean()
    done = run("eventually('a word', lambda: '', seconds=0.0)")
    assert done.code == 1 and done.err.endswith("AssertionError: not within 0 s\nwaited for: a word; last seen: ''\n")
