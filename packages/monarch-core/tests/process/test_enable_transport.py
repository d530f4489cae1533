"""`enable_transport`: once, before everything else, and for transports that exist."""

from __future__ import annotations

import pytest
from fresh import lines, run


def test_transport_is_set_before_the_first_use():
    done = run("""
    from monarch.actor import enable_transport
    from monarch.config import get_global_config
    enable_transport("tcp")
    enable_transport("tcp")
    print(get_global_config()["default_transport"])
    """)
    assert lines(done.stdout) == ["tcp(hostname)"]


@pytest.mark.parametrize(
    ("before", "transport", "refusal"),
    [
        ('enable_transport("tcp")', "ipc", "Only one transport type may be enabled at one time: tcp(hostname) is"),
        ("this_host()", "tcp", "enable_transport must be called before any other calls to Monarch"),
    ],
    ids=["a second transport", "after the first use"],
)
def test_transport_that_comes_too_late_is_refused(before: str, transport: str, refusal: str):
    done = run(f"""
    from monarch.actor import enable_transport, this_host
    {before}
    try:
        enable_transport("{transport}")
    except RuntimeError as e:
        print(e)
    """)
    assert lines(done.stdout) == [refusal]


def test_unknown_transport_is_refused_and_named():
    done = run("""
    from monarch.actor import enable_transport
    try:
        enable_transport("pigeon")
    except ValueError as e:
        print(e)
    enable_transport("tcp")
    """)
    assert "pigeon" in done.stdout
