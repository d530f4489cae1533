"""Interrupts of the main thread: after Ctrl-C, and by other threads where Ctrl-C would not reach it."""

from __future__ import annotations

import sys
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

# Interrupts the main thread where Ctrl-C would not: SIGINT is ignored in the background of a shell, and a script may ignore it too or leave
# it to the kernel. Neither libraries nor debuggers use this number, one of the last real-time signals.
INTERRUPT_SIGNAL = 62
# Only ends a system call. A signal that comes between the interpreter's last check and the call takes effect when the call ends.
_NUDGE_SIGNAL = 61
_NUDGE_PAUSES = (0.05, 1.0)  # seconds, the first and the longest; each is twice the previous one


def listen() -> None:
    if TYPE_CHECKING:
        import signal
    else:
        import _signal as signal  # without the enumerations that `signal` creates first

    if signal.getsignal(INTERRUPT_SIGNAL) == signal.SIG_DFL:
        signal.signal(INTERRUPT_SIGNAL, interrupted)
    if signal.getsignal(_NUDGE_SIGNAL) == signal.SIG_DFL:
        signal.signal(_NUDGE_SIGNAL, _notice)
    _catch_dropped()


def interrupted(number: int, frame: object) -> None:
    if not is_leaving():
        raise KeyboardInterrupt


# The program is ending: no code is left to interrupt.
_leaving = False


def leave() -> None:
    """Records that the program is ending."""
    global _leaving
    _leaving = True


def is_leaving() -> bool:
    return _leaving


_unraisable_hook: Callable[[Any], object] | None = None


def _catch_dropped() -> None:
    """Installs a hook that sends dropped interrupts again: the interpreter drops an exception, even of Ctrl-C, that leaves a callback or a
    destructor.
    """
    global _unraisable_hook
    if _unraisable_hook is None:
        _unraisable_hook, sys.unraisablehook = sys.unraisablehook, _again_if_dropped


def interrupt_main_thread() -> None:
    """Interrupts the main thread, also in a system call."""
    interrupt_by(_send)


def interrupt_by(send: Callable[[], object]) -> None:
    """Interrupts the main thread by `send`."""
    global _again
    _again = send
    _catch_dropped()
    send()
    start_new_thread(_nudge, ())


_noticed = False


def _notice(number: int, frame: object) -> None:
    """Handles the nudge in the main thread, after the handlers of earlier signals."""
    global _noticed
    _noticed = True


def _nudge() -> None:
    """Repeats the nudge until the main thread has run its handlers."""
    import signal
    import threading
    from time import sleep

    global _noticed
    _noticed = False
    main, (pause, longest) = threading.main_thread().ident, _NUDGE_PAUSES
    while not (_noticed or _leaving) and main is not None and signal.getsignal(_NUDGE_SIGNAL) is _notice:
        signal.pthread_kill(main, _NUDGE_SIGNAL)
        sleep(pause)
        pause = min(2 * pause, longest)


def _again_if_dropped(unraisable: Any) -> None:
    # Derived classes are exceptions of the program's own.
    if unraisable.exc_type is KeyboardInterrupt and not _leaving and _in_main_thread():
        # The signal is sent from another thread: in this hook the interrupt would be dropped again.
        start_new_thread(_send_again, (_again,))
    elif _unraisable_hook is not None:
        _unraisable_hook(unraisable)


def _in_main_thread() -> bool:
    # Not imported for other exceptions, which also come when the interpreter has removed its modules.
    import threading

    return threading.current_thread() is threading.main_thread()


def _send_again(send: Callable[[], object]) -> None:
    import threading
    from time import sleep

    main = threading.main_thread().ident
    # The interpreter drops exceptions of the hook, too.
    frames = sys._current_frames  # pyright: ignore[reportPrivateUsage]
    while main is not None and _is_below_hook(frames().get(main)):  # polls: a return from a function has no event
        sleep(0.001)  # sleeps: the hook takes microseconds
    send()
    _nudge()


def _is_below_hook(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _again_if_dropped.__code__:
            return True
        frame = frame.f_back
    return False


def _send() -> None:
    import signal
    import threading

    # A script's handler of SIGINT, Python's or the user's own, is the preferred way to interrupt the script.
    usual = callable(signal.getsignal(signal.SIGINT)) or not callable(signal.getsignal(INTERRUPT_SIGNAL))
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT if usual else INTERRUPT_SIGNAL)


def _send_dropped() -> None:
    import signal
    import threading

    # A user's handler may treat a second Ctrl-C differently from the first.
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, INTERRUPT_SIGNAL if callable(signal.getsignal(INTERRUPT_SIGNAL)) else signal.SIGINT)


# The function that sent the last interrupt; by default it sends a Ctrl-C.
_again: Callable[[], object] = _send_dropped
