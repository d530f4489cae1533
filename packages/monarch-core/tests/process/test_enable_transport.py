"""`enable_transport`: once, before everything else, and for transports that exist."""

from __future__ import annotations

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


def test_second_transport_is_refused():
    done = run("""
    from monarch.actor import enable_transport
    enable_transport("tcp")
    try:
        enable_transport("ipc")
    except RuntimeError as e:
        print(e)
    """)
    assert lines(done.stdout) == ["Only one transport type may be enabled at one time: tcp(hostname) is"]


def test_transport_after_the_first_use_is_refused():
    done = run("""
    from monarch.actor import enable_transport, this_host
    this_host()
    try:
        enable_transport("tcp")
    except RuntimeError as e:
        print(e)
    """)
    assert lines(done.stdout) == ["enable_transport must be called before any other calls to Monarch"]


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
