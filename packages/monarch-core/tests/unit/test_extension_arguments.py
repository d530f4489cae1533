"""Invalid arguments of the extension interface: the error names argument and value, and no operation starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monarch._core.process.current import known_process
from monarch.actor import Actor
from monarch.extension import Service, end_of
from monarch.extension.events import Observation, Reader, emit, observe, span
from monarch.extension.trace import TraceContext, use_trace


def no_batch(_: object) -> None:
    raise AssertionError("it was attached")


def reader() -> Any:
    return Reader.__new__(Reader)


def observation() -> Any:
    return Observation.__new__(Observation)


BAD: list[tuple[Callable[[Any], object], Any, type[Exception], str]] = [
    (observe, None, TypeError, "observer=None: expected a function that takes a Batch"),
    (observe, 5, TypeError, "observer=5: .*, not int"),
    (observe, b"x", TypeError, "observer=b'x': .*, not bytes"),
    (lambda x: observe(no_batch, every=x), "x", TypeError, "every='x': expected a number of seconds, not str"),
    (lambda x: observe(no_batch, every=x), None, TypeError, "every=None: expected a number of seconds"),
    (lambda x: observe(no_batch, every=x), 0, ValueError, "every=0: expected a finite number of seconds, more than 0"),
    (lambda x: observe(no_batch, every=x), float("nan"), ValueError, "every=nan: expected a finite number"),
    (lambda x: observe(no_batch, job=x), -1, ValueError, "observe: job: -1 is not the identity"),
    (lambda x: observe(no_batch, job=x), 0, ValueError, "observe: job: 0 is not the identity"),
    (lambda x: observe(no_batch, job=x), 1 << 64, ValueError, "observe: job: 18446744073709551616 is not the identity"),
    (lambda x: observe(no_batch, job=x), "x", TypeError, "observe: job: expected the identity .*, not 'x'"),
    (lambda x: observe(no_batch, job=x), 1.5, TypeError, "observe: job: expected the identity .*, not 1.5"),
    (lambda x: observation().stop(x), "x", TypeError, "timeout='x': expected a number of seconds, or None, not str"),
    (lambda x: observation().stop(x), -1, ValueError, "timeout=-1: expected a finite number of seconds, 0 or more"),
    (lambda x: reader().drain(x), "x", TypeError, "most='x': expected an int, not str"),
    (lambda x: reader().drain(x), 0, ValueError, "most=0: expected 1 to"),
    (lambda x: reader().read(x), 1 << 70, ValueError, "most=1180591620717411303424: expected 1 to"),
    (lambda x: reader().last(x), -1, ValueError, "events=-1: expected 1 to"),
    (lambda x: reader().last(x), None, TypeError, "events=None: expected an int, not NoneType"),
    (emit, 5, TypeError, "name=5: expected a str, not int"),
    (span, None, TypeError, "name=None: expected a str, not NoneType"),
    (end_of, None, TypeError, "end_of: expected the identity of a process, a number, not None"),
    (end_of, -1, ValueError, "end_of: -1 is not the identity"),
    (lambda x: Service(Actor, start_seconds=x), "1", TypeError, "start_seconds='1': expected a number of seconds, not str"),
    (lambda x: TraceContext(x, 1), "a", TypeError, "trace_id='a': expected an int, not str"),
    (lambda x: TraceContext(x, 1), True, TypeError, "trace_id=True: expected an int, not bool"),
    (lambda x: TraceContext(x, 1), 0, ValueError, r"trace_id=0: expected 1 to 2\*\*128 - 1"),
    (lambda x: TraceContext(x, 1), -1, ValueError, r"trace_id=-1: expected 1 to 2\*\*128 - 1"),
    (lambda x: TraceContext(x, 1), 1 << 128, ValueError, "trace_id=340282366920938463463374607431768211456: expected"),
    (lambda x: TraceContext(1, x), 1 << 64, ValueError, r"span_id=18446744073709551616: expected 1 to 2\*\*64 - 1"),
    (TraceContext.from_traceparent, None, TypeError, "traceparent=None: expected a str, not NoneType"),
    (lambda x: use_trace(x).__enter__(), 5, TypeError, "context=5: expected a TraceContext or None, not int"),
]


@pytest.mark.parametrize(("function", "value", "kind", "text"), BAD)
def test_bad_argument_is_named_and_nothing_starts(function: Callable[[Any], object], value: Any, kind: type[Exception], text: str) -> None:
    before = known_process()
    with pytest.raises(kind, match=text):
        function(value)
    assert known_process() is before


def test_largest_numbers_of_a_trace() -> None:
    context = TraceContext((1 << 128) - 1, (1 << 64) - 1)
    assert (context.trace_id, context.span_id) == ((1 << 128) - 1, (1 << 64) - 1)
