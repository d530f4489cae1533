"""Image archives made without an engine: of the machine's static busybox, or of a folder that is a root file system.

`localhost/host:1` has the links of a Debian root (`/bin` to `usr/bin`, ...) and nothing below `/usr`: a pod that mounts the node's `/usr`,
its interpreter and the checkout runs this machine's own Python, so that no image has to be pulled or built.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PAUSE = "localhost/pause:1"
HOST = "localhost/host:1"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDERS = ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "run", "var", "var/tmp", "home", "opt", "mnt", "work")
_LINKS = ("bin", "sbin", "lib", "lib64")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


class Image(NamedTuple):
    """The properties of an image besides its layer."""

    command: Sequence[str]
    env: Sequence[str] = (_PATH,)
    user: str = ""
    workdir: str = "/"
    entrypoint: Sequence[str] = ()


def write_host_images(archive: Path) -> None:
    """Writes the archive of `localhost/pause:1`, which every pod's sandbox uses, and `localhost/host:1`."""
    with tempfile.NamedTemporaryFile(dir=archive.parent, suffix=".layer") as file:
        with tarfile.open(fileobj=file, mode="w") as layer:
            for name in _FOLDERS:
                _add(layer, name, tarfile.DIRTYPE, mode=0o1777 if name.endswith("tmp") else 0o755)
            for name in _LINKS:
                _add(layer, name, tarfile.SYMTYPE, link=f"usr/{name}")
            busybox = shutil.which("busybox")
            if busybox is None:
                raise RuntimeError("there is no 'busybox' here: tools/system_packages.sh k8s")
            _add(layer, "busybox", tarfile.REGTYPE, Path(busybox).read_bytes())
            for name, text in _FILES.items():
                _add(layer, name, tarfile.REGTYPE, text.encode(), mode=0o644)
        file.flush()
        write_archive(archive, Path(file.name), {PAUSE: Image(["/busybox", "sleep", "2147483647"]), HOST: Image(["/busybox", "sh"])})


def write_root_image(archive: Path, root: Path, name: str, image: Image) -> None:
    """Writes the archive of an image whose only layer is the folder `root`."""
    with tempfile.NamedTemporaryFile(dir=archive.parent, suffix=".layer") as file:
        with tarfile.open(fileobj=file, mode="w") as layer:
            for path in sorted(root.iterdir()):
                layer.add(path, path.name)
        file.flush()
        write_archive(archive, Path(file.name), {name: image})


def write_archive(archive: Path, layer: Path, images: Mapping[str, Image]) -> None:
    """Writes an archive in the format of `docker save`, with images that share one layer."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    manifest: list[dict[str, object]] = []
    with tarfile.open(archive, "w") as out:
        out.add(layer, f"{digest}/layer.tar")
        for name, image in images.items():
            run = {"Cmd": [*image.command], "Env": [*image.env], "User": image.user, "WorkingDir": image.workdir}
            if image.entrypoint:
                run["Entrypoint"] = [*image.entrypoint]
            config = {
                "architecture": "amd64",
                "os": "linux",
                "config": run,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
            text = json.dumps(config).encode()
            file_name = f"{hashlib.sha256(text).hexdigest()}.json"
            _add(out, file_name, tarfile.REGTYPE, text, mode=0o644)
            manifest.append({"Config": file_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]})
        _add(out, "manifest.json", tarfile.REGTYPE, json.dumps(manifest).encode(), mode=0o644)


def _add(archive: tarfile.TarFile, name: str, kind: bytes, data: bytes = b"", *, link: str = "", mode: int = 0o755) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.linkname, entry.mode = kind, len(data), link, mode
    archive.addfile(entry, io.BytesIO(data))
