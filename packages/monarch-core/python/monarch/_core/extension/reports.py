"""Reports of other wheels in the answer of this process to an inspection."""

from __future__ import annotations

from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def add_report(name: str, report: Callable[[], object]) -> None:
    """Adds `report()` to the answer of this process with its stacks, as `reports[name]`; it replaces an earlier one of this name.

    The function runs when the stacks are taken, and only then: it must return within milliseconds, an object for JSON. A report that takes
    longer returns None and begins to collect: None means that a later look may have more. A function that raises or does not return is left
    out, and the diagnosis names it.
    """
    if not callable(report):
        raise TypeError(f"add_report({name!r}, {report!r}): expected a function without arguments")
    current_process().reports[name] = report
