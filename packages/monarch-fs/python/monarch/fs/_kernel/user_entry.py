"""The user of a process in the user database: `fusermount3` refuses one that has no entry there, after everything else went well."""

from __future__ import annotations

import os
import pwd

from monarch.fs._kernel.preflight import may_mount


def entry_problem() -> str:
    """Why `fusermount3` does not mount for this user, with the remedy; or ""."""
    if may_mount():
        return ""
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        remedy = f"useradd --uid {user} NAME, or a line for it in /etc/passwd"
        return f"the user {user} has no entry in the user database, without which fusermount3 does not mount ({remedy})"
    return ""
