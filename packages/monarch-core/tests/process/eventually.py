"""Waits for conditions that no event announces."""

import inspect
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def eventually(what: str, look: "Callable[[], Any]", holds: "Callable[[Any], object]" = bool, seconds: float = 60.0) -> "Any":
    """The first result of `look` that `holds`. The failure names `what` and the last result, even if pytest's own limit comes first."""
    seen, end = None, time.monotonic() + seconds
    try:
        while not holds(seen := look()):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:g} s")
            time.sleep(0.002)  # sleeps: between two looks
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        e.add_note(f"waited for: {what}; last seen: {seen!r}")
        raise
    return seen


# The source for scripts of fresh processes, which import no module of the tests.
SOURCE = f"import time\n\n{inspect.getsource(eventually)}\n"
