"""The operations of an administrator on a running cluster, whichever process has started it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.k8s.build import KUBE
from tools.k8s.certificates import Authority
from tools.k8s.slot import machine_address, network_name
from tools.netns.namespace import Namespace, living

# The path at which a node sees its own folder: paths of sockets have 107 characters at most.
NODE_FOLDER = "/run/node"
CONTAINERD = f"{NODE_FOLDER}/containerd.sock"
_IMPORT_TIMEOUT_S = 300.0


class Administration:
    """The cluster of a folder, by its files; `kubeconfig` is the administrator's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.kubeconfig = self.directory / "kubeconfig"

    @property
    def server(self) -> str:
        """The API server's URL, which this machine and the pods can reach."""
        try:
            return json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        except FileNotFoundError:
            raise RuntimeError(f"{self.directory}: the cluster is not up") from None

    @property
    def machine_address(self) -> str:
        """The address at which nodes and pods reach servers on this machine."""
        return machine_address(self.server)

    def user_kubeconfig(self, path: Path, user: str, groups: Sequence[str] = (), *, days: int = 30) -> Path:
        """Writes a kubeconfig with a client certificate for this user, who has no rights but those of roles bound to it."""
        authority = Authority(self.directory / "pki")
        name = f"user-{user.replace(':', '-')}"
        authority.issue(name, user, groups, days=str(days))
        return authority.kubeconfig(path, name, self.server)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True, timeout: float = 60) -> str:
        """The output of kubectl, called as the administrator; RuntimeError with its message if it fails."""
        done = self.try_kubectl(*arguments, stdin=stdin, timeout=timeout)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def try_kubectl(self, *arguments: str, stdin: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """The result of kubectl, called as the administrator, even if it fails."""
        argv = [str(KUBE.folder / "bin" / "kubectl"), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.directory / 'kubectl'}"]
        return subprocess.run([*argv, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout)

    def import_image(self, archive: Path) -> None:
        """Imports the images of an archive (as of `docker save`) into all nodes; pods name them with `imagePullPolicy: Never`."""
        spaces = {name: space for name, space in living()[network_name(self.server)].items() if name.startswith("node")}
        with ThreadPoolExecutor() as pool:
            # Most of the work is hashing.
            for done in [pool.submit(import_image, space, name, archive) for name, space in spaces.items()]:
                done.result()


def import_image(space: Namespace, node: str, archive: Path) -> None:
    """Imports the images of an archive into the node of these namespaces."""
    argv = ["ctr", "-a", CONTAINERD, "-n", "k8s.io", "images", "import", str(archive)]
    done = space.run(*argv, check=False, capture_output=True, timeout=_IMPORT_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{archive} cannot be imported on {node}: {done.stderr.strip()}")
