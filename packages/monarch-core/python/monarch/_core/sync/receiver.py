"""The actor that receives a workspace on a host: one process of each host, for the time of one sync."""

from __future__ import annotations

import os

from monarch._core.call.actor import Actor, endpoint
from monarch._core.sync.host_workspaces import take_over, take_over_environment
from monarch._core.sync.mirror import Mirror
from monarch._core.sync.path import hold, workspace_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # A part of a file: the digest of the file, the offset, the bytes, and whether they are the last ones.
    Part = tuple[bytes, int, bytes, bool]


class WorkspaceReceiver(Actor):
    """Holds a `Mirror` for each directory of the workspace."""

    def __init__(self, places: list[str], environment: bool) -> None:
        self.places = places
        self.environment = environment
        self.mirrors: dict[str, Mirror] = {}

    @endpoint
    def begin(self) -> str:
        """Verifies the present trees, while the sender scans its own; gives the workspace of this host."""
        with _naming_host():
            top = workspace_directory()
            os.makedirs(top, 0o700, exist_ok=True)
            hold()
            take_over(top)
            if self.environment:
                take_over_environment(top)
            for place in self.places:
                self.mirrors[place] = Mirror(top, place)
            return top

    @endpoint
    def missing(self, place: str, nodes: list[bytes], top: bytes) -> tuple[list[bytes], list[bytes]]:
        """Takes directories and returns the digests that are still missing."""
        with _naming_host():
            mirror = self.mirrors[place]
            mirror.receive_nodes(nodes)
            return mirror.missing(top)

    @endpoint
    def receive(self, place: str, parts: list[Part]) -> None:
        """Takes parts of files. The parts of one file come in order."""
        with _naming_host():
            for part in parts:
                self.mirrors[place].receive(*part)

    @endpoint
    def commit(self, place: str, top: bytes) -> tuple[list[bytes], list[bytes]]:
        """Switches to the new tree, or returns the missing digests."""
        with _naming_host():
            return self.mirrors[place].commit(top)

    def __cleanup__(self, exc: Exception | None) -> None:
        for mirror in self.mirrors.values():
            mirror.close()


class _naming_host:
    """A context that adds the name of this host to errors of the system."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            named = OSError(error.errno, f"workspace on host {os.uname().nodename}: {error.strerror}", error.filename)
            raise named.with_traceback(traceback) from None
