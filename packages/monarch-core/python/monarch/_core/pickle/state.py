"""What the pickling of this thread is for."""

from __future__ import annotations

from _thread import _local  # pyright: ignore


class _State(_local):
    # A message, as opposed to a plain `pickle.dumps` by the user.
    message = False
    # Unpickling leaves classes that exist already as they are.
    trial = False


state = _State()


def in_message() -> bool:
    """Whether this thread is pickling a message."""
    return state.message


class trial:
    """Context in which unpickling leaves classes that exist already as they are."""

    def __enter__(self) -> None:
        self.before, state.trial = state.trial, True

    def __exit__(self, *_: object) -> None:
        state.trial = self.before


def in_trial() -> bool:
    return state.trial
