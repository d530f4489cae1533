"""Mirrors directories of the client to hosts: one process on each host receives, the client sends every byte once.

The sender scans its tree while the receivers verify theirs. Then the sender requests the switch to the tree with this digest. The hosts
answer with the directories that they lack, receive these, from the top down, and then answer with the contents that they lack. Only those
are sent, by the same casts as any call, so that hosts that lack the same receive one message. The number of messages in flight is small.

All of that waits for answers, so it runs on a thread of its own, in the context of the caller, who owns the receiving processes.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from monarch._core._native.files import Blake3
from monarch._core.call.future import Future, new_future
from monarch._core.process.current import current_process
from monarch._core.process.process import LocalProcess
from monarch._core.process.workspace_variables import ENVIRONMENT
from monarch._core.sync import path as workspace_path
from monarch._core.sync.node import DIGEST
from monarch._core.sync.receiver import WorkspaceReceiver
from monarch._core.sync.tree import SourceChanged, Tree, scan
from monarch._core.sync.update import ask_procs
from monarch._core.sync.workspace import Workspace, environment_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from monarch._core._native import PendingCall
    from monarch._core.hosts.host_mesh import HostMesh
    from monarch._core.sync.receiver import Part

    # The function that mirrors an environment, and the environment's path here.
    Environment = tuple[Callable[[HostMesh, str, Sequence[str]], Future[tuple[int, int]]], str]

# The size of a message, and of a part of a large file, in bytes; and the most messages in flight.
BATCH = 1 << 20
UNDER_WAY = 4
# The number of repetitions if a tree changes while it is being sent, or a host still lacks content.
_TRIES = 5
# Seconds between two checks for a cancellation, and seconds for the end of a receiver.
_LOOK = 0.2
_STOP_TIMEOUT = 10.0


async def sync_workspace(hosts: HostMesh, workspace: Workspace, conda: bool, auto_reload: bool) -> None:
    """Mirrors the workspace to hosts other than this machine, and notifies the procs of the hosts."""
    import asyncio

    if not isinstance(workspace, Workspace):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"sync_workspace takes a Workspace, not {type(workspace).__name__}")
    environment: Environment | None = None
    if conda:
        from monarch._core.call.mesh_methods import implementation

        environment = implementation("push_environment", "sync_workspace(conda=True)", "monarch-fs"), environment_of(workspace)
    for local in workspace.dirs:
        if not local.is_dir():
            raise NotADirectoryError(f"a workspace is made of directories, and this is none: {local}")
    sync = Sync(current_process(), hosts, [(str(local), place) for local, place in workspace.dirs.items()], auto_reload, environment)
    try:
        await asyncio.to_thread(sync.run)
    finally:
        sync.cancelled = True


class Sync:
    """One sync, on a thread of its own."""

    def __init__(
        self, process: LocalProcess, hosts: HostMesh, pairs: list[tuple[str, str]], reload: bool, environment: Environment | None = None
    ) -> None:
        self.process = process
        self.hosts = hosts
        self.pairs = pairs
        self.places = workspace_path.described(pairs, sys.path)
        self.reload = reload
        self.environment = environment
        self.cancelled = False

    def run(self) -> None:
        if not self.pairs and self.environment is None:
            return
        agents = [agent for agent in self.hosts.__core__.agents if agent != self.process.agent_uid]
        if agents:
            receiving = self.hosts.spawn_procs(name="workspace")
            try:
                receivers = receiving.spawn(
                    "workspace", WorkspaceReceiver, [place for _, place in self.pairs], self.environment is not None
                )
                tops = self.mirror(receivers)
                # Meanwhile the receivers hold the locks of the workspaces.
                self.push_environment(tops)
            finally:
                self._end(receiving.stop())
            workspace_path.remember(agents, self.places)
        if not self.pairs:
            return
        self.update(self._procs(bool(agents)), bool(agents))

    def _end(self, stopped: Future[None]) -> None:
        """Ends the receivers, which releases their locks. A receiver on a host that hangs is not awaited."""
        try:
            stopped.exception(_STOP_TIMEOUT)
        except TimeoutError:
            return

    def _procs(self, elsewhere: bool) -> list[int]:
        if not elsewhere:
            # The procs of this machine belong to this job, whichever process has spawned them.
            return [uid for uid, pid in self.process.native.alive_procs() if pid] if self.reload else []
        found = {uid: None for mesh in self.hosts.__core__.spawned if mesh.info.stopped is None for uid in mesh.info.procs}
        # Other processes may have spawned procs on these hosts: actors there, or users of another mesh of the hosts.
        if self.process.is_client:
            found.update(dict.fromkeys(self._procs_there()))
        return list(found)

    def _procs_there(self) -> list[int]:
        """The procs of this client, as the agents of the hosts list them."""
        import json

        from monarch._core.observe.inspection import STATE

        cell = self.process.native.inspect(STATE)
        self._wait_for_cell(cell)
        (result,) = cell.results()
        answer: dict[str, Any] = {} if result is None else json.loads(result.raw())
        wanted = set(self.hosts.__core__.agents)
        found: list[tuple[int, int]] = []
        for host in answer.get("hosts", ()):
            id = int(host["id"], 16)
            if id in wanted and host["answer"] is not None:
                # The first process is the agent itself.
                found += [(int(proc["uid"], 16), id) for proc in host["answer"]["procs"][1:] if proc["state"] != "stopping"]
        self.process.native.route(found)
        return [uid for uid, _ in found]

    def update(self, procs: Sequence[int], is_mirrored: bool) -> None:
        """Notifies procs; `ActorError` if a module cannot be reloaded."""
        failed = ask_procs(self.process, procs, self.places, is_mirrored, self.reload, self._wait_for_cell)
        if failed:
            from monarch._core.errors.errors import reload_failed

            raise reload_failed(failed)

    def _wait_for_cell(self, cell: PendingCall) -> None:
        self.wait(new_future(cell, lambda c: None))

    def wait(self, future: Future[Any]) -> Any:
        """The result, or the end of a cancelled sync."""
        while True:
            self.check()
            try:
                return future.get(timeout=_LOOK)
            except TimeoutError:
                continue

    def check(self) -> None:
        if self.cancelled:
            raise InterruptedError("the sync was cancelled")

    # ---- sending

    def mirror(self, receivers: Any) -> list[str]:
        """Mirrors the directories to all hosts, one after the other; gives the workspace of each host."""
        begun = receivers.begin.call()
        began = monotonic()
        trees = [scan(os.fsencode(local), lambda: self.cancelled) for local, _ in self.pairs]
        tops: list[str] = self.wait(begun).values()
        for (local, place), tree in zip(self.pairs, trees, strict=True):
            sending = Sending(self, receivers, place, tree)
            for left in reversed(range(_TRIES)):
                try:
                    sending.run()
                    break
                except SourceChanged:
                    if not left:
                        raise
                    sending.tree = scan(os.fsencode(local), lambda: self.cancelled)
            now = monotonic()
            hosts = f"{len(self.hosts)} host{'s' if len(self.hosts) != 1 else ''}"
            files = f"{sending.files} file{'s' if sending.files != 1 else ''}"
            print(f"workspace {local} -> {place}: {files}, {shown_size(sending.bytes)} to {hosts} in {now - began:.2f} s", flush=True)
            began = now
        return tops

    def push_environment(self, tops: Sequence[str]) -> None:
        """Mirrors the environment to all hosts, by the function of the wheel that implements this."""
        if self.environment is None:
            return
        push, source = self.environment
        began = monotonic()
        written, sent = self.wait(push(self.hosts, source, [os.path.join(top, ENVIRONMENT) for top in tops]))
        files = f"{written} file{'s' if written != 1 else ''} written"
        hosts = f"{len(self.hosts)} host{'s' if len(self.hosts) != 1 else ''}"
        place = ENVIRONMENT
        print(f"environment {source} -> {place}: {files}, {shown_size(sent)} to {hosts} in {monotonic() - began:.2f} s", flush=True)


def shown_size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


class Sending:
    """Sends one directory. `files` and `bytes` are the amounts sent to each host."""

    def __init__(self, sync: Sync, receivers: Any, place: str, tree: Tree) -> None:
        self.sync = sync
        self.receivers = receivers
        self.place = place
        self.tree = tree
        self.files = 0
        self.bytes = 0
        self.under_way: list[Future[Any]] = []

    def run(self) -> None:
        """Runs until all hosts have switched; `SourceChanged` if a file has changed since the scan."""
        top = self.tree.digest
        for _ in range(_TRIES):
            nodes, files = self._ask(self.receivers.commit, top)
            if not nodes and not files:
                return
            while nodes:
                found = [self.tree.nodes[d] for d in nodes]
                self.bytes += sum(map(len, found))
                nodes, files = self._ask(self.receivers.missing, found, top)
            self._send({digest: os.path.join(self.tree.top, path) for digest, path in self.tree.paths_of(files).items()})
        raise RuntimeError(f"hosts keep losing parts of {self.place}: something else is writing to WORKSPACE_DIR/.monarch there")

    def _ask(self, endpoint: Any, *args: Any) -> tuple[list[bytes], list[bytes]]:
        """The digests that any of the hosts lacks."""
        nodes: dict[bytes, None] = {}
        files: dict[bytes, None] = {}
        for lacks_nodes, lacks_files in self.sync.wait(endpoint.call(self.place, *args)).values():
            nodes.update(dict.fromkeys(lacks_nodes))
            files.update(dict.fromkeys(lacks_files))
        return list(nodes), list(files)

    def _send(self, paths: dict[bytes, bytes]) -> None:
        batch: list[Part] = []
        size = 0
        try:
            for digest, path in paths.items():
                self.sync.check()
                for part in _parts(digest, path):
                    batch.append(part)
                    size += len(part[2])
                    if size >= BATCH:
                        self._put(size, batch)
                        batch, size = [], 0
                self.files += 1
            if batch:
                self._put(size, batch)
        finally:
            under_way, self.under_way = self.under_way, []
        for future in under_way:
            self.sync.wait(future)

    def _put(self, size: int, parts: list[Part]) -> None:
        """Sends a message; waits while too many are in flight."""
        self.bytes += size
        self.under_way.append(self.receivers.receive.call(self.place, parts))
        while len(self.under_way) > UNDER_WAY:
            self.sync.wait(self.under_way.pop(0))


def _parts(digest: bytes, path: bytes) -> Iterator[Part]:
    """A file's content in at least one part; `SourceChanged` before the last one if the file has changed since the scan."""
    h = Blake3()
    offset = 0
    try:
        with open(path, "rb", buffering=0) as f:
            data = f.read(BATCH)
            while True:
                h.update(data)
                following = f.read(BATCH) if len(data) == BATCH else b""
                if not following and h.digest()[:DIGEST] != digest:
                    break
                yield digest, offset, data, not following
                if not following:
                    return
                offset += len(data)
                data = following
    except FileNotFoundError:
        raise SourceChanged(f"{os.fsdecode(path)} went before it was read") from None
    raise SourceChanged(f"{os.fsdecode(path)} changes while it is read")
