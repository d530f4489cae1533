"""A node: containerd with runc, kubelet and kube-proxy in namespaces of network, mounts, processes and host name.

The namespaces live as long as one process. With it, all of the node's processes and mounts end, as after a power cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tools.k8s import cgroups
from tools.k8s.administration import CONTAINERD, NODE_FOLDER, import_image
from tools.k8s.control_plane import DOMAIN, ControlPlane, Patience, start
from tools.k8s.images import PAUSE
from tools.k8s.slot import Slot
from tools.netns.namespace import Namespace
from tools.netns.process import Process

_START_TIMEOUT_S = 60.0
# The kernel settings that the kubelet requires. It would change the machine's own: in the node, files with these values are mounted over
# them.
_KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# $0 is the node's folder.
_PREPARE = f"""
mount --make-rshared /
for folder in /run /var/log /var/lib/cni; do
    mkdir -p $folder
    mount -t tmpfs tmpfs $folder
done
mkdir -p /run/netns /run/lock /run/kernel {NODE_FOLDER}
mount --bind "$0" {NODE_FOLDER}
while [ $# -gt 1 ]; do
    file=/run/kernel/$(echo "$1" | tr / .)
    echo "$2" >$file
    [ ! -e /proc/sys/$1 ] || mount --bind $file /proc/sys/$1
    shift 2
done
"""
_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/containerd/opt"
"""


class Node:
    """Node `index` of the cluster, from 1 on, named `node<index>`; all its files are in one folder."""

    def __init__(self, index: int, plane: ControlPlane, programs: Path, patience: Patience) -> None:
        self.index = index
        self.name = f"node{index}"
        self.folder = plane.directory / "nodes" / self.name
        self._plane = plane
        self._programs = programs
        self._patience = patience
        self._group = group_name(plane.slot, index)
        self.cut_off = False
        self._lifeline: int | None = None
        self._namespace: Namespace | None = None
        self._processes: dict[str, Process] = {}
        for name in ("containerd", "kubelet/volumeplugins", "cni", "pki", "pods"):
            (self.folder / name).mkdir(parents=True)
        address = self.address
        plane.authority.issue(self.name, f"system:node:{self.name}", ["system:nodes"], hosts=[f"DNS:{self.name}", f"IP:{address}"])
        self._kubeconfig = plane.authority.kubeconfig(self.folder / "kubeconfig", self.name, plane.server)
        self._write_configuration()

    @property
    def address(self) -> str:
        return self._plane.slot.node(self.index)

    @property
    def up(self) -> bool:
        return self._namespace is not None

    def start(self, images: Sequence[Path]) -> None:
        """Starts the node (again) with these image archives; returns before it is Ready."""
        if self.up:
            raise RuntimeError(f"{self.name} is up")
        cgroups.make(self._group)
        end, self._lifeline = os.pipe()
        try:
            self._namespace = space = Namespace.make(self._plane.slot.name, self.name, end)
        finally:
            os.close(end)
        self._connect(space)
        space.run("sh", "-ec", _PREPARE, str(self.folder), *(word for item in _KERNEL.items() for word in item))
        for left in self.folder.glob("containerd.sock*"):
            left.unlink()
        self._start("containerd", "containerd", "--config", f"{NODE_FOLDER}/containerd.toml")
        self._await_containerd(space)
        for image in images:
            import_image(space, self.name, image)
        self.start_kubelet()
        self._start_proxy()

    def kill(self) -> None:
        """Ends every process of the node at once, including its pods; the control plane detects the loss by itself."""
        lifeline, self._lifeline = self._lifeline, None
        space, self._namespace = self._namespace, None
        if lifeline is not None:
            os.close(lifeline)
        if space is not None:
            space.gone()
            # The kernel removes the link with the namespace of its other end, some time later; the node may return before.
            with contextlib.suppress(OSError):
                self._plane.namespace.configure("ip", "link", "delete", self.name)
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        cgroups.remove(self._group)
        self.cut_off = False

    def start_kubelet(self) -> None:
        self._start(
            "kubelet",
            str(self._programs / "kubelet"),
            f"--config={NODE_FOLDER}/kubelet.json",
            f"--kubeconfig={self._kubeconfig}",
            f"--root-dir={NODE_FOLDER}/kubelet",
            f"--cert-dir={NODE_FOLDER}/pki",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )

    def _start_proxy(self) -> None:
        self._start(
            "kube-proxy",
            str(self._programs / "kube-proxy"),
            f"--kubeconfig={self._plane.authority.folder / 'proxy.kubeconfig'}",
            f"--hostname-override={self.name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={self._plane.slot.pods}",
            # These are settings of the machine, not of a network.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def kill_kubelet(self) -> None:
        """Ends the kubelet only: the pods continue, and no component reports the end."""
        self._end("kubelet")

    def restart_clients(self) -> None:
        """Restarts the clients of the API server; the pods continue."""
        for name in ("kubelet", "kube-proxy"):
            if name in self._processes:
                self._end(name)
        self.start_kubelet()
        self._start_proxy()

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def partition(self) -> None:
        """Stops all traffic to and from the node and its pods, until `heal`."""
        self._plane.namespace.configure("ip", "link", "set", self.name, "down")
        self.cut_off = True

    def heal(self) -> None:
        self._plane.namespace.configure("ip", "link", "set", self.name, "up")
        self.cut_off = False

    def running(self) -> list[str]:
        """The running daemons."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def ended(self) -> list[str]:
        """The daemons that have ended unexpectedly."""
        return [f"{self.name}-{name}" for name, process in self._processes.items() if process.poll() is not None]

    def _connect(self, space: Namespace) -> None:
        slot = self._plane.slot
        lines = [f"link add {self.name} type veth peer name eth0 netns {space.first}"]
        lines += [f"link set {self.name} master bridge", f"link set {self.name} up"]
        lines += [f"route replace {slot.pods_of(self.index)} via {self.address}"]
        self._plane.namespace.configure("ip", "-batch", "-", lines="\n".join(lines))
        lines = [
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {slot.control_plane}",
        ]
        space.configure("ip", "-batch", "-", lines="\n".join(lines))

    def _await_containerd(self, space: Namespace) -> None:
        end = time.monotonic() + _START_TIMEOUT_S
        while space.run("ctr", "-a", CONTAINERD, "version", check=False, capture_output=True).returncode:
            if self.ended() or time.monotonic() > end:
                raise RuntimeError(f"containerd of {self.name} does not answer: {self._log('containerd').read_text()[-2000:]}")
            time.sleep(0.05)

    def _log(self, name: str) -> Path:
        return self._plane.directory / "log" / f"{self.name}-{name}"

    def _start(self, name: str, *argv: str) -> None:
        assert self._namespace is not None
        self._processes[name] = start(self._namespace, self._log(name), *argv)

    def _write_configuration(self) -> None:
        folder, slot, authority = self.folder, self._plane.slot, self._plane.authority
        (folder / "containerd.toml").write_text(_CONTAINERD.format(folder=NODE_FOLDER, pause=PAUSE))
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni-ipam",
                "ranges": [[{"subnet": slot.pods_of(self.index)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network, indent=1))
        grace = self._patience.node_s
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            # v1 is refused by default since 1.35; the message announces its removal in a later release.
            "failCgroupV1": False,
            # containerd 1.6 cannot report its driver.
            "cgroupDriver": "cgroupfs",
            # A kubelet removes groups of unknown pods, and there are several kubelets on this machine.
            "cgroupRoot": f"/{self._group}",
            "address": self.address,
            "healthzPort": 0,
            "tlsCertFile": str(authority.certificate(self.name)),
            "tlsPrivateKeyFile": str(authority.key(self.name)),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "enableControllerAttachDetach": True,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                **dict.fromkeys(("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "1%"),
            },
            "clusterDomain": DOMAIN,
            "clusterDNS": [slot.control_plane],
            "resolvConf": "",
            "nodeStatusUpdateFrequency": f"{max(1, grace // 4)}s",
            # The lease is renewed every quarter of it.
            "nodeLeaseDurationSeconds": grace,
            "syncFrequency": "5s",
            "podLogsDir": f"{NODE_FOLDER}/pods",
            "volumePluginDir": f"{NODE_FOLDER}/kubelet/volumeplugins",
        }
        (folder / "kubelet.json").write_text(json.dumps(kubelet, indent=1))


def group_name(slot: Slot, index: int) -> str:
    return f"{slot.name}-node{index}"
