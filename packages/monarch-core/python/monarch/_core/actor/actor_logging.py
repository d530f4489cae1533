"""Records of Python's `logging` inside actors begin with `[actor={display}] `.

The record factory adds the prefix. So every handler shows it, whether present or added later, and code outside actors pays for one lookup
of a context variable. A program that later installs a factory which does not call this one loses the prefix.
"""

from __future__ import annotations

import sys

from monarch._core._native.events import is_on, log_record
from monarch._core.call.current_actor import current_display, current_mailbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_installed = False


def install() -> None:
    """Installs the record factory of this process, once; now, or when `logging` is imported."""
    global _installed
    if not _installed:
        _installed = True
        from monarch._core.process.post_import import when_imported

        when_imported("logging", _install)


def _install(logging: Any) -> None:
    before = logging.getLogRecordFactory()

    def make_record(*args: Any, **kwargs: Any) -> Any:
        record = before(*args, **kwargs)
        message: Any = record.msg
        # Structured loggers send empty messages, which must stay empty. Other messages may be any object, also one that cannot be compared.
        if message is not None and not (isinstance(message, str) and not message) and _wanted():
            display = current_display()
            if display is not None:
                prefix = f"[actor={display}] "
                try:
                    record.msg = f"{prefix.replace('%', '%%') if record.args else prefix}{message}"
                except Exception as e:  # the message has no text; the handlers report that in their own way
                    del e
        if is_on():
            _recorded(record)
        return record

    logging.setLogRecordFactory(make_record)


def _recorded(record: Any) -> None:
    """Emits the event of a record, without the prefix of the actor."""
    try:
        text = record.getMessage()
    except Exception as e:  # the arguments do not fit the text; the handlers report that
        text = f"{record.msg!r} ({e})"
    display, current = current_display(), current_mailbox()
    log_record(current, record.name, max(0, record.levelno), text.removeprefix(f"[actor={display}] ") if display else text)


def _wanted() -> bool:
    switches = sys.modules.get("monarch.actor.config")
    return switches is None or switches.prefix_python_logs_with_actor
