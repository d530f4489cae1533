"""The client of a mount, in a process of its own: carries out one command per line, and answers it by a line of JSON.

    python bench/fs_client.py SECRET [WORKER...]

Without workers the host is this machine. `Client` starts it, here or in a namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Client:
    """The client process. `popen` starts a process, like `subprocess.Popen`, or like that of a host in namespaces."""

    def __init__(self, popen: Callable[..., Any], env: dict[str, str], secret: str = "", workers: tuple[str, ...] = ()) -> None:
        argv = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), secret, *workers]
        self._process = popen(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._answer()

    def ask(self, *words: Any) -> Any:
        """The answer to a command; `RuntimeError` with the command's exception."""
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client of the mount ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def here(*argv: str, **options: Any) -> subprocess.Popen[str]:
    """Starts a process on this machine."""
    return subprocess.Popen(argv, text=True, **options)


def main(secret: str, *workers: str) -> None:
    from monarch.actor import attach_to_workers, this_host
    from monarch.fs import Mount, mount

    hosts: Any = attach_to_workers(workers=list(workers), secret=secret) if workers else this_host()
    mounts: dict[str, Mount] = {}

    def opened(source: str, target: str, fetch: Any, pyc: Any) -> float:
        """Seconds until the names are there."""
        begin = time.perf_counter()
        mounts[target] = mount(hosts, source, target, fetch=fetch, pyc=pyc)
        mounts[target].ready.get()
        return time.perf_counter() - begin

    def completed(target: str) -> float:
        begin = time.perf_counter()
        mounts[target].complete().get()
        return time.perf_counter() - begin

    def closed(target: str) -> float:
        begin = time.perf_counter()
        mounts.pop(target).close().get()
        return time.perf_counter() - begin

    def refreshed(target: str) -> dict[str, Any]:
        return mounts[target].refresh().get()._asdict()

    def status(target: str) -> list[dict[str, Any]]:
        return [host._asdict() for host in mounts[target].status().get().hosts]

    verbs: dict[str, Callable[..., Any]] = {
        "mount": opened,
        "complete": completed,
        "refresh": refreshed,
        "status": status,
        "close": closed,
    }

    if workers:
        hosts.initialized.get()
    # Other output must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"value": "up"}), file=out, flush=True)
    for line in sys.stdin:
        verb, *words = json.loads(line)
        try:
            answer = {"value": verbs[verb](*words)}
        except Exception as e:
            answer = {"error": f"{verb}: {type(e).__name__}: {e}"}
        print(json.dumps(answer), file=out, flush=True)
    for target in list(mounts):
        closed(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
