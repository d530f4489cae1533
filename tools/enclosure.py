"""A daemon and all its descendants, in a PID namespace that ends with its owner.

Daemons like slurmd and sshd start processes that leave their session and outlive them. In a PID namespace they cannot: the kernel kills
every process of it when its first one ends. That first one is a shell which waits for the end of its standard input, a pipe of the owner.
So all processes end after `kill()`, after the owner's exit, and after its death by SIGKILL. For a daemon and its jobs, the kill of an
enclosure is like a power cut of a machine, except for the effects on the network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

_UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# The arguments are a host name, which may be empty, and the number of replaced files, with the path and the replacement of each. The shell
# reaps orphans of the namespace while it waits for `cat`.
_INIT = """
[ -z "$1" ] || hostname "$1" || exit 1
count=$2; shift 2
while [ "$count" -gt 0 ]; do mount --bind "$2" "$1" || exit 1; shift 2; count=$((count - 1)); done
"$@" </dev/null & exec 2>/dev/null; cat >/dev/null
"""


def unavailable() -> str:
    """The reason why there can be no enclosure here; empty if there can."""
    if shutil.which("unshare") is None:
        return "there is no 'unshare' here (Debian's util-linux)"
    tried = subprocess.run([*_UNSHARE, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return f"no PID namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


class Enclosure:
    """`argv`, running in a namespace of its own; its output goes to the file `log`.

    It sees `files` (path to replacement) in place of the machine's own, and `hostname` as the machine's name.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Path] | None = None,
        hostname: str = "",
    ) -> None:
        self.log = log
        replaced = [word for path, other in (files or {}).items() for word in (path, str(other))]
        unshare = (*_UNSHARE, "--uts") if hostname else _UNSHARE
        with log.open("ab") as out:
            self._init = subprocess.Popen(
                [*unshare, "sh", "-c", _INIT, "sh", hostname, str(len(replaced) // 2), *replaced, *argv],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    def kill(self) -> None:
        """Ends every process of the namespace at once, by SIGKILL."""
        self._init.kill()
        self._init.wait()
        assert self._init.stdin is not None
        self._init.stdin.close()

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the namespace."""
        pending = _children(self._init.pid)
        while pending:
            pid = pending.pop()
            pending += _children(pid)
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(pid, number)

    @property
    def pid(self) -> int:
        """The process outside that holds the namespace."""
        return self._init.pid

    def last_words(self) -> str:
        """The end of the daemon's output."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def __enter__(self) -> Enclosure:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # the process has ended meanwhile
        return []
