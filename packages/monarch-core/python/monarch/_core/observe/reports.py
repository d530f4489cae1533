"""The reports of other wheels in an answer (`monarch.extension.inspection.add_report`), whose functions are code of any kind.

Each runs in a thread of its own: one that does not return delays no answer for longer than `_TIMEOUT`, and no work of this process.
"""

from __future__ import annotations

import json
import time

from monarch._core.observe.raised import described

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core.process.process import LocalProcess

# Seconds for all reports of an answer together, and the most characters of one.
_TIMEOUT = 0.3
_MOST = 256 << 10

# The functions that have not returned, by their names: one is not called again meanwhile.
_late: dict[str, Callable[[], object]] = {}


def reports(process: LocalProcess, left_out: dict[str, str]) -> dict[str, Any]:
    """The reports by their names. `left_out` gets the reason of each that raises, does not return, or is no JSON or too long."""
    from threading import Thread

    texts: dict[str, str] = {}
    reasons: dict[str, str] = {}

    def run(name: str, report: Callable[[], object]) -> None:
        _late[name] = report
        try:
            texts[name] = json.dumps(report())
        except BaseException as e:  # it may end its thread too
            reasons[name] = described(e)
        finally:
            _late.pop(name, None)

    functions = {name: one for name, one in list(process.reports.items()) if _late.get(name) is not one}
    threads = [Thread(target=run, args=one, name="monarch-report", daemon=True) for one in functions.items()]
    until = time.monotonic() + _TIMEOUT
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    found: dict[str, Any] = {}
    for name in list(process.reports):
        text = texts.get(name)
        if text is not None and len(text) <= _MOST:
            found[name] = json.loads(text)
        else:
            reason = f"it has more than {_MOST:,} characters" if text is not None else reasons.get(name, "it has not returned")
            left_out[f"report {name}"] = reason
    return found
