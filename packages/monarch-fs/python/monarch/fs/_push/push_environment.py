"""The environment part of `HostMesh.sync_workspace(conda=True)`: an entry point of the group `monarch.mesh`.

It is a push with `relocate=True` and `delete=True` into a directory of the workspace, whose path is another one on each host: each host
puts its own path into the files. Contents of an environment are sent once and stay in the stores, so another job on the same hosts receives
none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from monarch.actor import Future, HostMesh
from monarch.extension import Promise, promise, when_done
from monarch.fs._index.index import Index
from monarch.fs._push.environment import relocation_of
from monarch.fs._push.push import RunningPush
from monarch.fs._push.push_counts import PushReport
from monarch.fs._push.relocation import PlainRelocation

_LOG = logging.getLogger("monarch.fs")
_SHOWN = 5
# Stands for the place of a host until the host inserts its own.
_ANY_PLACE = "/workspace"


def push_environment(hosts: HostMesh, source: str, targets: Sequence[str], /) -> Future[tuple[int, int]]:
    """Makes `targets[rank]` the environment `source` on the host of that rank.

    The future has the files that were written on all hosts, and the bytes that were sent; its errors are those of `push`. A warning names
    binaries that still contain the old place. `ValueError` where `source` is no environment.
    """
    moved = relocation_of(source, _ANY_PLACE)
    index = Index(source, exclude=(".monarch",), gitignore=False, pyc="as-is")
    done: Promise[tuple[int, int]] = promise(f"the environment {source} on the hosts")

    def finish(pushed: Future[PushReport]) -> None:
        try:
            report = pushed.get()
        except BaseException as e:
            done.set_exception(e)
            return
        if report.prefix_left:
            names = ", ".join(report.prefix_left[:_SHOWN])
            more = f", and {len(report.prefix_left) - _SHOWN} more" if len(report.prefix_left) > _SHOWN else ""
            _LOG.warning("binaries of %s that still contain its path on the client: %s%s", source, names, more)
        done.set_result((report.files_written, report.bytes_sent))

    relocation = PlainRelocation(moved.old, moved.new, moved.rooms)
    when_done(RunningPush(hosts, index, source, tuple(targets), True, relocation).start(), finish)
    return done.future
