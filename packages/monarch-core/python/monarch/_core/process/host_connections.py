"""The other hosts of a client or an agent: the native connections to them, and the attachments that brought them into the job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Hosts
    from monarch._core._native import Process as NativeProcess
    from monarch._core.process.parts import Attached


class HostConnections:
    """The connections, which exist from the first need on, and the attachments of hosts that are not lost."""

    __slots__ = ("_node", "attachments", "native")

    def __init__(self, node: NativeProcess) -> None:
        self._node = node
        self.native: Hosts | None = None
        self.attachments: list[Attached] = []

    def connected(self) -> Hosts:
        """The connections, made on first need."""
        if self.native is None:
            from monarch._core._native import Hosts

            self.native = Hosts(self._node)
        return self.native
