"""The report of `monarch doctor` about mounts."""

from __future__ import annotations

from collections.abc import Iterator

from monarch.fs._kernel.preflight import may_mount, problems, remarks, user_allow_other


def lines() -> Iterator[tuple[str, str, str]]:
    """Subject, text, and what to do; the last is empty where nothing is wrong."""
    missing = problems()
    for line in missing:
        text, _, remedy = line.partition(" (")
        yield "fs", f"mounts do not work: {text}", remedy.removesuffix(")")
    if not missing:
        how = "mount(2)" if may_mount() else f"fusermount3, user_allow_other {'set' if user_allow_other() else 'not set'}"
        yield "fs", f"mounts work, by {how}", ""
        for text, remedy in remarks():
            yield "fs", text, remedy
