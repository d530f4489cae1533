"""The driver of this process, loaded on first use: that of the GPUs that torch was built for, else the first that loads."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from monarch.rdma.drivers.cuda import Cuda
from monarch.rdma.drivers.hip import Hip
from monarch.rdma.drivers.library import DriverError

if TYPE_CHECKING:
    from monarch.rdma.drivers.driver import Driver


def _candidates() -> tuple[type[Driver], ...]:
    # Tensors use the driver for which torch was built, even if the machine has another one.
    version = getattr(sys.modules.get("torch"), "version", None)
    if getattr(version, "hip", None):
        return (Hip,)
    return (Cuda,) if getattr(version, "cuda", None) else (Cuda, Hip)


@cache
def _loaded(kind: type[Driver]) -> Driver | str:
    try:
        return kind()
    except DriverError as e:
        return str(e)


def _find() -> Driver | str:
    reasons: list[str] = []
    for kind in _candidates():
        found = _loaded(kind)
        if not isinstance(found, str):
            return found
        reasons.append(found)
    return "; ".join(reasons)


def obstacle() -> str:
    """The obstacle to the use of memory of GPUs; empty if it can be used. Loads the driver, and makes no context."""
    found = _find()
    return found if isinstance(found, str) else ""


def driver() -> Driver:
    """`DriverError` where there is an `obstacle`."""
    found = _find()
    if isinstance(found, str):
        raise DriverError(found)
    return found
