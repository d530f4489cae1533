"""Badly written exceptions: waiting callers get them, others are reported, and no unrelated actor or process ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, SupervisionError, endpoint, this_host, this_proc

pytestmark = pytest.mark.usefixtures("fresh")

HUGE = 3 << 20


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Unloadable(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class RefusesToPickle(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("no pickle")


class RefusesToLoad(Exception):
    def __setstate__(self, state: Any) -> None:
        raise KeyboardInterrupt

    def __reduce__(self) -> Any:
        return RefusesToLoad, self.args, {"a": 1}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise SystemExit("no repr")


class Nameless(Exception):
    __module__ = None  # type: ignore[assignment]


class Vain(Exception):
    """Gives false information about its chained exceptions."""

    @property
    def __notes__(self) -> Any:
        raise ValueError("no notes")


def make(kind: str) -> BaseException:
    if kind == "cycle of causes":
        one, two = ValueError("one"), KeyError("two")
        one.__cause__, two.__cause__ = two, one
        return one
    if kind == "cycle of contexts":
        one, two = ValueError("one"), KeyError("two")
        one.__context__, two.__context__ = two, one
        return one
    if kind == "long chain":
        error: BaseException = ValueError("link 0")
        for i in range(1, 2000):
            error, error.__cause__ = ValueError(f"link {i}"), error
        return error
    if kind == "deep group":
        group: Exception = ValueError("innermost")
        for i in range(30):
            group = ExceptionGroup(f"level {i}", [group])
        return group
    return {
        "unpicklable": lambda: Unpicklable("with a lock"),
        "unloadable": lambda: Unloadable(1, 2),
        "refuses to pickle": lambda: RefusesToPickle("why"),
        "refuses to load": lambda: RefusesToLoad("why"),
        "mute": lambda: Mute("secret"),
        "nameless": lambda: Nameless("who"),
        "vain": lambda: Vain("look"),
        "huge": lambda: ValueError("x" * HUGE),
        "many lines": lambda: ValueError("line\n" * (HUGE // 5)),
        "group": lambda: ExceptionGroup("some", [ValueError("a"), Unpicklable("b"), KeyError("c")]),
        "holds itself": lambda: _holding_itself(),
        "key": lambda: KeyError("a key"),
        "syntax": lambda: _syntax_error(),
        "odd syntax": lambda: SyntaxError("odd", ("f.py", "not a number", None, 3)),  # type: ignore[arg-type]
        "surrogates": lambda: ValueError("\ud800 \x00 \x1b[31m"),
        "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        "os": lambda: FileNotFoundError(2, "No such file", "a.txt"),
        "base group": lambda: BaseExceptionGroup("some", [SystemExit(1), ValueError("a")]),
        "mute base": lambda: _MuteBase(),
    }[kind]()


class _MuteBase(BaseException):
    def __str__(self) -> str:
        raise self

    __repr__ = __str__


def _holding_itself() -> Exception:
    error = ValueError("me")
    error.me = error  # type: ignore[attr-defined]
    return error


def _syntax_error() -> Exception:
    try:
        compile("1 +* 2", "there.py", "exec")
    except SyntaxError as e:
        return e
    raise AssertionError


# The first line that reports show of each.
SHOWN = {
    "unpicklable": "test_bad_exceptions.Unpicklable: with a lock",
    "unloadable": "test_bad_exceptions.Unloadable: 1 and 2",
    "refuses to pickle": "test_bad_exceptions.RefusesToPickle: why",
    "refuses to load": "test_bad_exceptions.RefusesToLoad: why",
    "mute": "test_bad_exceptions.Mute: <exception str() failed>",
    "nameless": "None.Nameless: who",
    "vain": "test_bad_exceptions.Vain: look",
    "cycle of causes": "ValueError: one",
    "cycle of contexts": "ValueError: one",
    "long chain": "ValueError: link 1999",
    "deep group": "ExceptionGroup: level 29 (1 sub-exception)",
    "huge": "ValueError: xxx",
    "many lines": "ValueError: line",
    "group": "ExceptionGroup: some (3 sub-exceptions)",
    "holds itself": "ValueError: me",
    "key": "KeyError: 'a key'",
    "syntax": "SyntaxError: invalid syntax (there.py, line 1)",
    "odd syntax": "SyntaxError: odd (f.py)",
    "surrogates": "ValueError: \ud800 \x00 \x1b[31m",
    "unicode": "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: bad",
    "os": "FileNotFoundError: [Errno 2] No such file: 'a.txt'",
}
BASE = {"base group": "BaseExceptionGroup: some (2 sub-exceptions)", "mute base": "test_bad_exceptions._MuteBase: <exception str() failed>"}


class Thrower(Actor):
    def __init__(self, first: str = "") -> None:
        if first:
            raise make(first)

    @endpoint
    def throw(self, kind: str) -> None:
        raise make(kind)

    @endpoint
    def alive(self) -> bool:
        return True


class AsyncThrower(Actor):
    __init__ = Thrower.__init__  # type: ignore[assignment]

    @endpoint
    async def throw(self, kind: str) -> None:
        await asyncio.sleep(0)
        raise make(kind)

    @endpoint
    async def alive(self) -> bool:
        return True


BOTH = pytest.mark.parametrize("cls", [Thrower, AsyncThrower])


@pytest.fixture(scope="module")
def procs(faults):
    with this_host().spawn_procs() as mesh:
        yield mesh


@BOTH
@pytest.mark.parametrize("kind", SHOWN)
def test_exception_reaches_the_waiting_caller(procs, cls, kind):
    thrower = procs.spawn("thrower", cls)
    for where in (thrower, this_proc().spawn("thrower", cls)):
        with pytest.raises(ActorError) as caught:
            where.throw.call_one(kind).get()
        head = str(caught.value).split("\n", 1)[0]
        assert head.startswith(f"Actor call thrower.throw failed. {SHOWN[kind]}"), head
        assert caught.value.exception_type == SHOWN[kind].split(":")[0]
        formatted = caught.value.exception_formatted
        assert formatted.startswith("Traceback of where the remote call failed") and len(formatted) < 100_000
        assert isinstance(caught.value.exception, Exception)
        assert where.alive.call_one().get() is True


@BOTH
@pytest.mark.parametrize("kind", [*SHOWN, *BASE])
def test_exception_without_a_caller_is_reported(procs, faults, cls, kind):
    shown = {**SHOWN, **BASE}[kind]
    thrower = procs.spawn("thrower", cls)
    thrower.throw.broadcast(kind)
    failure = faults.get()
    head = failure.report().split("\n", 1)[0]
    assert head.startswith(f"The actor {failure.actor} and all its descendants have failed: {shown}"), head
    assert failure.name == "thrower" and len(failure.report()) < 200_000
    with pytest.raises(SupervisionError) as caught:
        thrower.alive.call_one().get()
    assert caught.value.failure == failure
    assert procs.spawn("other", cls).alive.call_one().get() is True


@BOTH
@pytest.mark.parametrize("kind", BASE)
def test_base_exception_reaches_the_waiting_caller(procs, faults, cls, kind):
    with pytest.raises(SupervisionError, match="thrower") as caught:
        procs.spawn("thrower", cls).throw.call_one(kind).get()
    assert BASE[kind] in str(caught.value).split("\n", 1)[0]
    assert faults.get() == caught.value.failure


@pytest.mark.parametrize("kind", ["mute", "huge", "cycle of causes", "base group", "mute base"])
def test_raised_by_init(procs, faults, kind):
    thrower = procs.spawn("thrower", Thrower, kind)
    with pytest.raises(SupervisionError):
        thrower.alive.call_one().get()
    assert {**SHOWN, **BASE}[kind] in faults.get().report().split("\n", 1)[0]


class Talker(Actor):
    @endpoint
    def abort(self, size: int) -> None:
        from monarch.actor import context

        context().actor_instance.abort("\ud800" + "x" * size)


def test_reason_of_an_abort_is_bounded(procs, faults):
    procs.spawn("talker", Talker).abort.broadcast(HUGE)
    failure = faults.get()
    assert failure.reason.detail.startswith("actor explicitly aborted due to: \\ud800xxx")
    assert "characters left out" in failure.reason.detail and len(failure.reason.detail) < 20_000
