"""etcd, API server, controller manager, scheduler and DNS in namespaces of their own, which are the switch between the nodes as well."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tools.k8s.certificates import Authority, signing_keys
from tools.k8s.slot import API_PORT, SERVICES, Slot
from tools.netns.namespace import Namespace
from tools.netns.process import Process

DOMAIN = "cluster.local"
_ETCD = "http://127.0.0.1:2379"
# The first address of the services' range is the API server's.
_API_SERVICE = "10.96.0.1"
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}")
# A locally administered address; each cluster has a network of its own.
_BRIDGE = "02:00:00:00:00:01"
_CONTROLLERS = ("kube-controller-manager", "kube-scheduler", "coredns")
# For each certificate its user and groups. Kubernetes's own roles are bound to these users.
_USERS: dict[str, tuple[str, list[str]]] = {
    "admin": ("admin", ["system:masters"]),
    "kubelet-client": ("kube-apiserver-kubelet-client", ["system:masters"]),
    "controllers": ("system:kube-controller-manager", []),
    "scheduler": ("system:kube-scheduler", []),
    "proxy": ("system:kube-proxy", []),
}
# No answer is cached, not even for a second: the name of a new pod is found at once. For a name outside of the cluster the answer is "not
# found" and no failure, which clients would retry.
_COREFILE = """\
{domain}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {address}
    errors
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        ttl 0
        pods insecure
    }}
}}
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


class Patience(NamedTuple):
    """Seconds of silence until a node counts as lost, and until its pods are evicted. Kubernetes's own values: 50, 300."""

    node_s: int = 8
    eviction_s: int = 3


PATIENCE = Patience()


class ControlPlane:
    """The components, each with its output in `directory/log`."""

    def __init__(self, directory: Path, programs: Path, slot: Slot, lifeline: int, patience: Patience) -> None:
        self.directory = directory
        self.slot = slot
        self._programs = programs
        self._patience = patience
        self._processes: dict[str, Process] = {}
        (directory / "etcd").mkdir(mode=0o700)
        self.authority = Authority(directory / "pki")
        self.server = f"https://{slot.control_plane}:{API_PORT}"
        hosts = [*(f"DNS:{name}" for name in _NAMES), *(f"IP:{address}" for address in ("127.0.0.1", _API_SERVICE, slot.control_plane))]
        self.authority.issue("server", "kube-apiserver", hosts=hosts)
        signing_keys(self._pki("accounts.key"), self._pki("accounts.pub"))
        for name, (user, groups) in _USERS.items():
            self.authority.issue(name, user, groups)
            self.authority.kubeconfig(self._pki(f"{name}.kubeconfig"), name, self.server)
        self.namespace = Namespace.make(slot.name, "switch", lifeline)
        self._make_switch()

    def _pki(self, name: str) -> Path:
        return self.authority.folder / name

    def _make_switch(self) -> None:
        slot = self.slot
        # Without an address of its own a bridge has the lowest address of its ports, which changes when a node ends: the other nodes would
        # not reach the control plane for seconds.
        lines = [
            "link set lo up",
            f"link add bridge address {_BRIDGE} type bridge",
            f"addr add {slot.control_plane}/24 dev bridge",
            "link set bridge up",
        ]
        lines += [f"link add host type veth peer name {slot.link} netns {os.getpid()}", "link set host master bridge", "link set host up"]
        self.namespace.configure("ip", "-batch", "-", lines="\n".join(lines))
        # The control plane routes between the pods of the nodes. Redirects are off: they would give a node a shorter route, which a
        # partition could not cut.
        script = "echo 1 >/proc/sys/net/ipv4/ip_forward; for f in /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 >$f; done"
        self.namespace.run("sh", "-ec", script)
        mine = [
            f"addr add {slot.machine}/24 dev {slot.link}",
            f"link set {slot.link} up",
            f"route add {slot.pods} via {slot.control_plane}",
        ]
        done = subprocess.run(["ip", "-batch", "-"], input="\n".join(mine), text=True, capture_output=True)
        if done.returncode:
            raise OSError(f"ip {mine}: {done.stderr.strip()}")

    def start_storage(self) -> None:
        """Starts etcd and the API server, which waits for etcd."""
        peers = "http://127.0.0.1:2380"
        self._start(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            *(f"--{name}-client-urls={_ETCD}" for name in ("listen", "advertise")),
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self.start_api_server()

    def start_api_server(self) -> None:
        pki, patience = self._pki, self._patience
        self._start(
            "kube-apiserver",
            f"--etcd-servers={_ETCD}",
            "--bind-address=0.0.0.0",
            f"--advertise-address={self.slot.control_plane}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={pki('server.crt')}",
            f"--tls-private-key-file={pki('server.key')}",
            f"--client-ca-file={pki('ca.crt')}",
            f"--kubelet-certificate-authority={pki('ca.crt')}",
            f"--kubelet-client-certificate={pki('kubelet-client.crt')}",
            f"--kubelet-client-key={pki('kubelet-client.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={SERVICES}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-account-key-file={pki('accounts.pub')}",
            f"--service-account-signing-key-file={pki('accounts.key')}",
            f"--cert-dir={self.authority.folder}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            *(f"--default-{state}-toleration-seconds={patience.eviction_s}" for state in ("not-ready", "unreachable")),
        )

    def start_controllers(self) -> None:
        """Starts the components that need the API server."""
        pki = self._pki
        local = ("--leader-elect=false", "--bind-address=127.0.0.1", f"--cert-dir={self.authority.folder}")
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={pki('controllers.kubeconfig')}",
            f"--service-account-private-key-file={pki('accounts.key')}",
            f"--root-ca-file={pki('ca.crt')}",
            "--use-service-account-credentials",
            # Each node has a fixed range of pods.
            "--controllers=*,-node-ipam-controller",
            "--allocate-node-cidrs=false",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={self._patience.node_s}s",
            *local,
        )
        self._start("kube-scheduler", f"--kubeconfig={pki('scheduler.kubeconfig')}", *local)
        corefile = self.directory / "Corefile"
        config = pki("admin.kubeconfig")
        corefile.write_text(_COREFILE.format(domain=DOMAIN, address=self.slot.control_plane, kubeconfig=config))
        self._start("coredns", "-conf", str(corefile))

    def stop_api_server(self) -> None:
        """Ends the API server at once; etcd and the other components continue without it."""
        self._end("kube-apiserver")

    def restart_controllers(self) -> None:
        for name in _CONTROLLERS:
            if name in self._processes:
                self._end(name)
        self.start_controllers()

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def _start(self, name: str, *arguments: str) -> None:
        self._processes[name] = start(self.namespace, self.directory / "log" / name, str(self._programs / name), *arguments)

    def running(self) -> list[str]:
        """The running components."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def ended(self) -> list[str]:
        """The components that have ended unexpectedly."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def close(self) -> None:
        """Waits for the end of all processes, once the other end of the lifeline is closed."""
        self.namespace.gone()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        # The kernel removes it with the namespace of its other end, some time later.
        subprocess.run(["ip", "link", "delete", self.slot.link], capture_output=True)


def start(namespace: Namespace, log: Path, *argv: str) -> Process:
    """Starts a daemon in a namespace; its output is appended to `log`."""
    with log.open("ab") as out:
        # Daemons do not inherit the environment, which could differ between two runs, nor a terminal's signals.
        env = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LANG": "C.UTF-8"}
        return namespace.popen(*argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True)
