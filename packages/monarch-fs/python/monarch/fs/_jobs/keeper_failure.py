"""Errors of the keeper's services as errors of this wheel: what `monarch.fs` raises in the keeper is raised in the client too."""

from __future__ import annotations

import builtins
from collections.abc import Generator
from contextlib import contextmanager

import monarch.fs
from monarch.fs.errors import FsError
from monarch.job import KeeperError

# Errors that `mount` raises for its arguments and its source.
_BUILT_IN = ("FileNotFoundError", "NotADirectoryError", "PermissionError", "TypeError", "ValueError")


@contextmanager
def raised_here() -> Generator[None]:
    """Raises a `KeeperError` again, as the type that was raised in the keeper where that is one of `monarch.fs` or of a bad argument."""
    try:
        yield
    except KeeperError as e:
        error = _restored(e)
        if error is None:
            raise
        raise error from None


def _restored(error: KeeperError) -> Exception | None:
    if error.raised in _BUILT_IN:
        return getattr(builtins, error.raised)(str(error))
    kind = getattr(monarch.fs, error.raised, None) if error.raised else None
    if not (isinstance(kind, type) and issubclass(kind, FsError)):
        return None
    # The fields of a subclass are not transferred from the keeper; the text contains them.
    found = FsError(str(error), code=error.code)
    found.__class__ = kind
    return found
