"""How the main thread is interrupted where Ctrl-C would not do it."""

from __future__ import annotations

from monarch._core.process.root_fault import is_leaving

TYPE_CHECKING = False

# Interrupts the main thread where Ctrl-C would not: in the background of a shell SIGINT is ignored, and a script may ignore it too or
# leave it to the kernel. One that nobody else uses: neither libraries nor debuggers take the last of the real-time signals.
INTERRUPT_SIGNAL = 62


def listen() -> None:
    if TYPE_CHECKING:
        import signal
    else:
        import _signal as signal  # without the enumerations that the other one makes first

    if signal.getsignal(INTERRUPT_SIGNAL) == signal.SIG_DFL:
        signal.signal(INTERRUPT_SIGNAL, interrupted)


def interrupted(number: int, frame: object) -> None:
    if not is_leaving():
        raise KeyboardInterrupt
