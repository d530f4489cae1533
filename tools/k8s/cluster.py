"""KubeCluster: a real Kubernetes cluster on this machine, of one control plane and nodes in namespaces of their own.

The machine's own network gets one link and one route, to the control plane and to the pods, and no rule. All processes end with the
process that started them; control groups do not, and are removed when the next cluster starts.
Several clusters can run at once, each with its own folder, names and addresses (`slot.py`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from tools.k8s.administration import Administration
from tools.k8s.api import Api
from tools.k8s.build import KUBE
from tools.k8s.control_plane import PATIENCE, ControlPlane, Patience
from tools.k8s.images import write_host_images
from tools.k8s.node import Node
from tools.k8s.slot import Slot, remove_leftovers
from tools.netns.namespace import unavailable

# Seconds; 15 on an idle machine.
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
PROGRAMS = ("containerd", "ctr", "runc", "conntrack", "iptables", "busybox", "openssl", "ip")
_CNI = Path("/usr/lib/cni/bridge")
# The entries of the folder that a cluster makes, besides the logs.
_OWN = ("etcd", "pki", "nodes", "kubectl", "host.tar", "Corefile", "kubeconfig")


def missing() -> str:
    """The reason why no cluster can be started here; empty if one can."""
    lacking = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if lacking or not _CNI.exists():
        return f"what runs pods is not installed ({', '.join(lacking) or _CNI}): tools/system_packages.sh k8s"
    if os.getuid() != 0:
        return "the nodes of a Kubernetes cluster need root"
    if damage := KUBE.damage():
        return f"{damage}: python -m tools.k8s build"
    return unavailable() or ""


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class KubeCluster(Administration):
    """A cluster with the nodes node1, node2, ... while the `with` block runs; `kubeconfig` is the administrator's.

    Nodes have the images `localhost/host:1` (images.py) and those of the archives `images`. The leftovers of an earlier cluster in
    `directory` are removed at the start; `directory/log` stays at the end.
    """

    def __init__(self, directory: Path, nodes: int = 2, *, images: Sequence[Path] = (), patience: Patience = PATIENCE) -> None:
        if not 1 <= nodes <= 250:
            raise ValueError(f"a cluster has 1 to 250 nodes, not {nodes}")
        super().__init__(directory)
        if any(self.directory.is_relative_to(hidden) for hidden in ("/run", "/var/log", "/var/lib/cni")):
            raise ValueError(
                f"{self.directory}: nodes have folders of their own at /run, /var/log and /var/lib/cni, so it must be elsewhere"
            )
        self.nodes: list[Node] = []
        self._count = nodes
        self._images = [self.directory / "host.tar", *images]
        self._patience = patience
        self._slot: Slot | None = None
        self._lock: IO[str] | None = None
        self._plane: ControlPlane | None = None
        self._lifeline: int | None = None
        self._programs = Path()
        self._api: Api | None = None
        # Whether the API server was away, so that its clients may still wait before their next request.
        self._are_waiting = False

    def up(self) -> None:
        """Starts all parts and waits until all nodes are Ready."""
        if lacking := missing():
            raise RuntimeError(lacking)
        (self.directory / "log").mkdir(parents=True, exist_ok=True)
        self._reserve()
        self._clear()
        remove_leftovers()
        self._programs = KUBE.folder / "bin"
        try:
            self._slot = Slot()
            write_host_images(self.directory / "host.tar")
            end, self._lifeline = os.pipe()
            try:
                self._plane = ControlPlane(self.directory, self._programs, self._slot, end, self._patience)
            finally:
                os.close(end)
            self._start()
        except BaseException:
            self.down()
            raise

    def _start(self) -> None:
        plane = self._plane
        assert plane is not None
        plane.authority.kubeconfig(self.kubeconfig, "admin", plane.server)
        self._api = Api(plane.slot.control_plane, plane.authority, "admin")
        plane.start_storage()
        self.nodes = [Node(index, plane, self._programs, self._patience) for index in range(1, self._count + 1)]
        self._await_api_server()
        plane.start_controllers()
        since = time.time()
        for node in self.nodes:
            node.start(self._images)
        for node in self.nodes:
            self._await_node(node, since)
        self._wait("default service account", lambda: self.api.object("/api/v1/namespaces/default/serviceaccounts/default") is not None)

    def down(self) -> None:
        """Ends every process of the cluster, pods included, and removes its files outside of its folder."""
        for node in self.nodes:
            node.kill()
        self.nodes = []
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)
        if self._plane is not None:
            self._plane.close()
            self._plane = None
        if self._slot is not None:
            self._slot.close()
            self._slot = None
            self._clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _reserve(self) -> None:
        lock = (self.directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RuntimeError(f"{self.directory}: a cluster is up in this folder") from None
        self._lock = lock

    def _clear(self) -> None:
        for name in _OWN:
            path = self.directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @property
    def plane(self) -> ControlPlane:
        if self._plane is None:
            raise RuntimeError(f"{self.directory}: the cluster is not up")
        return self._plane

    @property
    def api(self) -> Api:
        """The API server, accessed as its administrator."""
        assert self._api is not None
        return self._api

    def node(self, index: int) -> Node:
        """Node `node<index>`; the first one is 1."""
        if not 1 <= index <= len(self.nodes):
            raise ValueError(f"no node{index}: there are {', '.join(node.name for node in self.nodes) or 'none'}")
        return self.nodes[index - 1]

    def node_kill(self, index: int) -> None:
        """Ends a node like a power cut: its daemons and the processes of all its pods."""
        self.node(index).kill()

    def node_up(self, index: int) -> None:
        """Starts a node again and waits until it is Ready."""
        since = time.time()
        self.node(index).start(self._images)
        self._await_node(self.node(index), since)

    def kubelet_kill(self, index: int) -> None:
        """Ends the kubelet of a node; its pods continue."""
        self.node(index).kill_kubelet()

    def kubelet_up(self, index: int) -> None:
        """Starts the kubelet of a node again and waits until the node is Ready."""
        since = time.time()
        self.node(index).start_kubelet()
        self._await_node(self.node(index), since)

    def partition(self, index: int) -> None:
        """Cuts a node and its pods off from all networks, until `heal`."""
        self.node(index).partition()

    def heal(self, index: int) -> None:
        """Ends a partition and waits until the node is Ready."""
        since = time.time()
        self.node(index).heal()
        self._await_node(self.node(index), since)

    def api_server_kill(self) -> None:
        self.plane.stop_api_server()
        self._are_waiting = True

    def api_server_up(self) -> None:
        """Starts the API server again and waits until it is ready."""
        self.plane.start_api_server()
        self._await_api_server()

    def api_server_restart(self) -> None:
        self.api_server_kill()
        self.api_server_up()

    def restore(self) -> None:
        """Undoes the effects of the methods above: all nodes are Ready again, and the API server."""
        if "kube-apiserver" not in self.plane.running():
            self.api_server_up()
        if self._are_waiting:
            self._end_waits()
        for node in self.nodes:
            if not node.up:
                self.node_up(node.index)
            elif "kubelet" not in node.running():
                self.kubelet_up(node.index)
            elif node.cut_off:
                self.heal(node.index)

    def import_image(self, archive: Path) -> None:
        """Imports the images of an archive into all nodes, also into those that return later."""
        super().import_image(archive)
        self._images.append(archive)

    def _end_waits(self) -> None:
        """Restarts the clients of an API server that was away: with their own waits, of up to a minute, they would return late and one by
        one.

        Controllers that see new pods and old heartbeats treat a node as lost.
        """
        since = time.time()
        nodes = [node for node in self.nodes if node.up and not node.cut_off]
        for node in nodes:
            node.restart_clients()
        for node in nodes:
            self._await_node(node, since)
        self.plane.restart_controllers()
        self._are_waiting = False

    def node_ready(self, index: int, since: float = 0) -> bool:
        """Whether a node is Ready, by a report of its kubelet after `since`, in seconds of the epoch."""
        found = self.api.object(f"/api/v1/nodes/node{index}")
        for condition in found["status"].get("conditions", ()) if found else ():
            if condition["type"] == "Ready" and condition["status"] == "True":
                # The format of the server: whole seconds.
                return condition["lastHeartbeatTime"] >= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
        return False

    def _await_node(self, node: Node, since: float) -> None:
        self._wait(f"{node.name} that is Ready", lambda: self.node_ready(node.index, since))

    def _await_api_server(self) -> None:
        self._wait("API server that is ready", lambda: self.api.get("/readyz") == "ok")

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while not ready():
            ended = [*self.plane.ended(), *(name for node in self.nodes for name in node.ended())]
            if ended:
                raise RuntimeError(f"no {what}: {self._last_words(ended)}")
            if time.monotonic() > end:
                raise TimeoutError(f"no {what} after {START_TIMEOUT_S:.0f} s; see {self.directory / 'log'}")
            time.sleep(0.05)

    def _last_words(self, names: list[str]) -> str:
        logs = {name: self.directory / "log" / name for name in names}
        return "\n".join(f"{name} has ended, it said:\n{log.read_text(errors='replace')[-2000:]}" for name, log in logs.items())

    def __enter__(self) -> KubeCluster:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()
