"""Runs commands in containers whose files come from the client by one mount: an unpacked root, a SquashFS image, an OCI layout.

A small root is made here. Each host sees it, and the images made from it, in a read-only mount: nothing is copied before it is read. No
container engine takes part. `unshare` enters the root; the image is mounted by a loop device, or by squashfuse; a layer is unpacked by
`tarfile`. If the machine lacks a requirement of a part, it is printed, and the part is left out.

    python examples/container_root.py
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host
from monarch.fs import PreflightError, mount

SCRIPT = "read text </etc/greeting; echo $text from process $$"


class Container(Actor):
    """Runs commands of the host in roots that the mount shows."""

    def run(self, script: str, *arguments: str) -> str:
        # A separate process has the namespaces: its mounts end with it. Without root, it is root in a user namespace.
        namespaces = ["unshare", "--mount", "--pid", "--fork", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        done = subprocess.run([*namespaces, "sh", "-ec", script, "sh", *arguments], capture_output=True, text=True)
        if done.returncode:
            return f"not run: {done.stderr.strip().splitlines()[-1]}"
        return done.stdout.strip()

    @endpoint
    def in_root(self, root: str) -> str:
        return self.run('exec unshare --root="$1" /bin/sh -c "$2"', root, SCRIPT)

    @endpoint
    def in_image(self, image: str) -> str:
        # The loop device is released with the namespace.
        mounts = 'mount -t squashfs -o loop,ro "$1" "$3" 2>/dev/null || squashfuse "$1" "$3"'
        with tempfile.TemporaryDirectory() as empty:
            return self.run(f'{mounts}; unshare --root="$3" /bin/sh -c "$2"; umount "$3"', image, SCRIPT, empty)

    @endpoint
    def in_layout(self, layout: str) -> str:
        with tempfile.TemporaryDirectory() as root:
            unpack(Path(layout), root)
            return self.run('exec unshare --root="$1" /bin/sh -c "$2"', root, SCRIPT)


def unpack(layout: Path, root: str) -> None:
    """Writes the layers of the first image of an OCI layout; each blob is checked against its digest."""

    def blob(described: dict[str, str]) -> bytes:
        algorithm, _, digest = described["digest"].partition(":")
        data = (layout / "blobs" / algorithm / digest).read_bytes()
        if hashlib.new(algorithm, data).hexdigest() != digest:
            raise ValueError(f"{layout}: the content of {described['digest']} is another one")
        return data

    index = json.loads((layout / "index.json").read_bytes())
    for layer in json.loads(blob(index["manifests"][0]))["layers"]:
        # Images of several layers remove files by marks, `.wh.NAME`: this one has none.
        with tarfile.open(fileobj=io.BytesIO(blob(layer))) as tar:
            tar.extractall(root, filter="tar")


def make_root(root: Path) -> None:
    """A shell with all its files: a static busybox if there is one, else the shell of this machine with its libraries."""
    for folder in ("bin", "etc", "proc", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "etc" / "greeting").write_text("a file of the client\n")
    program = shutil.which("busybox") or "/bin/sh"
    loaded = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", loaded):
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    shutil.copy(program, root / "bin" / Path(program).name)
    if Path(program).name != "sh":
        (root / "bin" / "sh").symlink_to(Path(program).name)


def make_layout(root: Path, layout: Path) -> None:
    """An OCI image of one layer."""

    def blob(media: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (layout / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    (layout / "blobs" / "sha256").mkdir(parents=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, arcname=".")
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = {"architecture": machine, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
    manifest = {
        "schemaVersion": 2,
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(packed.getvalue()))],
    }
    index = {"schemaVersion": 2, "manifests": [blob("manifest.v1+json", json.dumps(manifest).encode())]}
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "containers"), f"{folder}/mounted"
        make_root(source / "root")
        make_layout(source / "root", source / "layout")
        if shutil.which("mksquashfs"):
            image = [str(source / "root"), str(source / "root.squashfs")]
            subprocess.run(["mksquashfs", *image, "-quiet", "-no-progress"], check=True, capture_output=True)

        hosts = this_host()  # or attach_to_workers(...), or the hosts of a job
        try:
            mounted = mount(hosts, source, target, pyc="as-is")
            mounted.ready.get()
        except PreflightError as e:
            print(f"no mount on this machine: {e}")
            return
        try:
            container = hosts.spawn_procs().spawn("container", Container)
            print("root:", container.in_root.call_one(f"{target}/root").get())
            if shutil.which("mksquashfs"):
                print("SquashFS image:", container.in_image.call_one(f"{target}/root.squashfs").get())
            else:
                print("SquashFS image: left out, mksquashfs of squashfs-tools is missing")
            print("OCI layout:", container.in_layout.call_one(f"{target}/layout").get())

            # An edit of the client reaches the container by a refresh.
            (source / "root" / "etc" / "greeting").write_text("an edited file of the client\n")
            mounted.refresh().get()
            print("root:", container.in_root.call_one(f"{target}/root").get())
        finally:
            mounted.close().get()


if __name__ == "__main__":
    main()
