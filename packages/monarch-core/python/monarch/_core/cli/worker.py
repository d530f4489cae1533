"""`monarch worker`: the agent of a host as a program."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import click

from monarch._core.hosts.trust import Given
from monarch._core.process.signal_thread import SignalThread
from monarch._core.process.title import set_title
from monarch._core.start.worker import WorkerLoop


def run(listen: str, secret_file: str | None, insecure: bool, publish: str | None, port_tries: int, idle_timeout: float | None) -> int:
    """Serves until a client shuts the host down, no client was attached for `idle_timeout` seconds, SIGTERM or Ctrl-C."""
    set_title("monarch", *sys.argv[1:])
    try:
        loop = WorkerLoop(listen, Given(secret_file, None, None, insecure), port_tries)
    except (ValueError, OSError) as e:
        raise click.ClickException(e.strerror if isinstance(e, OSError) and e.strerror else str(e)) from None
    SignalThread((signal.SIGTERM, signal.SIGINT), lambda number: loop.end())
    click.echo(f"listening at {loop.url}")
    if publish is not None:
        _publish(publish, loop)
    if idle_timeout is not None:
        loop.end_when_idle(idle_timeout)
    loop.wait()
    return 0


def _publish(path: str, loop: WorkerLoop) -> None:
    from monarch._core.observe.doctor import versions
    from monarch._core.process.identity import to_base58

    process = loop.process
    description: dict[str, Any] = {
        "address": loop.url,
        "host": process.host,
        "pid": process.pid,
        "uid": to_base58(process.uid),
        "version": dict(versions()).get("monarch-core", ""),
    }
    partial = f"{path}.{process.pid}"
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as f:
            json.dump(description, f)
        os.replace(partial, path)
    except OSError as e:
        loop.close()
        raise click.ClickException(f"cannot publish the address in {path}: {e.strerror}") from None
