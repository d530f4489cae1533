"""A port of a pod as a port of this machine, over the API server's websocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster


class Forward:
    """Listens on the loopback once `start` has returned; each connection is one websocket. `port` is that of the pod."""

    def __init__(self, cluster: Cluster, pod: str, port: int) -> None:
        self.cluster, self.pod, self.port = cluster, pod, port

    def start(self) -> int:
        """The local port."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the connections and the listener."""
        raise NotImplementedError
