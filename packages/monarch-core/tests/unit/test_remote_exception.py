"""Exceptions between processes: formatted tracebacks, and the substitutes of exceptions that cannot be pickled."""

from __future__ import annotations

import pickle
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.errors.errors import ActorError, received_actor_error
from monarch._core.pickle import pickling
from monarch._core.pickle.remote_exception import HEADER, format_exception, pack_exception, unpack_exception


def raised(exc):
    try:
        raise exc
    except BaseException as caught:
        return caught


def received(exc):
    return received_actor_error(pack_exception(exc), "Actor call work.step failed.", "<root>.<train.Trainer work>", 77, "h1")


# Tracebacks -----------------------------------------------------------------------------------------------------------------------


def test_traceback_begins_at_user_code():
    def explode():
        raise ValueError("here")

    class Argument:
        def __reduce__(self):
            explode()

    with pytest.raises(ValueError, match="here") as caught:
        pickling.dumps(Argument())  # frames of the runtime are between the test and the error
    text = format_exception(caught.value)
    assert text.startswith(HEADER + "\n  File ")
    assert "in explode" in text and "_core/pickle/pickling.py" not in text
    assert __file__ in text


def test_chained_exceptions_keep_pythons_sentences():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ValueError("second") from first
    except ValueError as second:
        text = format_exception(second)
    assert "The above exception was the direct cause of the following exception:" in text
    assert text.startswith(HEADER) and "KeyError: 'first'" in text and text.endswith("ValueError: second")

    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904
    except ValueError as second:
        assert "During handling of the above exception, another exception occurred:" in format_exception(second)


def test_notes_and_groups_are_shown():
    exc = raised(ExceptionGroup("many", [ValueError("a"), raised(KeyError("b"))]))
    exc.add_note("look here")
    text = format_exception(exc)
    assert text.startswith(HEADER) and "look here" in text and "ValueError: a" in text and "KeyError: 'b'" in text


def test_exception_without_traceback():
    assert format_exception(ValueError("x")) == f"{HEADER}\nValueError: x"


# Exceptions that cannot be pickled -----------------------------------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one}-{two}")


class BrokenReduce(Exception):
    def __reduce__(self):
        raise RuntimeError("no reduce")


class WrongReduce(Exception):
    def __reduce__(self):
        return (str, ("not an exception",))


class BrokenStr(Exception):
    def __str__(self):
        raise RuntimeError("no str")


class QuietStr(Exception):
    def __str__(self):
        return None  # type: ignore[return-value]  # noqa: PLE0307


class FatalStr(Exception):
    def __str__(self):
        raise SystemExit(3)


class RecursiveStr(Exception):
    def __str__(self):
        return str(self)


class RecursiveReduce(Exception):
    def __reduce__(self):
        return (RecursiveReduce, (RecursiveReduce(),))


class WithLock(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class FatalUnpickle(Exception):
    def __setstate__(self, state):
        sys.exit(5)

    def __reduce__(self):
        return (FatalUnpickle, self.args, {"x": 1})


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (TwoArguments(1, 2), "1-2"),
        (BrokenReduce("why"), "why"),
        (WrongReduce("why"), "why"),
        (RecursiveReduce("why"), "why"),
        (WithLock("why"), "why"),
        (FatalUnpickle("why"), "why"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unpicklable_exception_gets_a_substitute(exc, text):
    error = received(raised(exc))
    assert type(error.exception) is Exception and str(error.exception) == text
    assert error.exception_type == f"{__name__}.{type(exc).__name__}"
    assert text in error.exception_formatted
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    # Pickling by hand keeps the original, which the message pickler replaces.
    by_hand = ActorError(exc)
    assert by_hand.exception is exc and type(pickle.loads(pickle.dumps(by_hand)).exception) is Exception


@pytest.mark.parametrize("kind", [BrokenStr, QuietStr, FatalStr, RecursiveStr])
def test_str_that_fails(kind):
    error = received(raised(kind("x")))
    assert type(error.exception) is kind
    assert f"{__name__}.{kind.__name__}: <exception str() failed>" in str(error)


def test_cyclic_exception_is_sent():
    exc = ValueError("loop")
    exc.me = exc  # type: ignore[attr-defined]
    back = received(raised(exc)).exception
    assert type(back) is ValueError and back.me is back
    exc.args = (exc,)
    assert "ValueError" in str(received(raised(exc)))


def test_causes_that_form_a_loop():
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    text = format_exception(one)
    assert "one" in text and "two" in text


def test_local_exception_class_comes_back_as_itself():
    class Local(Exception):
        pass

    assert type(received(raised(Local("x"))).exception) is Local


def test_base_exceptions_travel():
    assert type(received(raised(SystemExit(3))).exception) is SystemExit
    assert type(received(raised(KeyboardInterrupt())).exception) is KeyboardInterrupt


def test_given_pickler_is_used():
    packed = pack_exception(ValueError("x"), pickle.dumps, pickle.loads)
    assert pickle.loads(packed[3]).args == ("x",)
    assert unpack_exception(packed, pickle.loads).args == ("x",)


def test_class_that_is_missing_here():
    packed = ("gone.Error", "the text", HEADER, b"\x80\x05\x8c\x04gone\x8c\x05Error\x93)R.")
    back = unpack_exception(packed)
    assert type(back) is Exception and str(back) == "the text"


@given(st.text())
def test_any_text_arrives(text):
    error = received(ValueError(text))
    assert error.exception.args == (text,) and error._text == text
