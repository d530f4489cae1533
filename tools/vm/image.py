"""A kernel and an initramfs: the files that QEMU needs to boot, made from packages that Debian signs.

The initramfs has busybox, the modules in the order in which they are loaded, and `init.sh`. It is kept until one of these changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.project import ROOT

CACHE = ROOT / ".hatch" / "vm"
_INIT = Path(__file__).with_name("init.sh")
_PACKAGE = "linux-image-amd64"
# Modules for the bus and the shared files, for wires and their disturbances, for devices and their checksums, and for programs that use
# these.
MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "veth", "sch_netem", "crc32_generic", "rdma_rxe", "ib_uverbs")


class Image(NamedTuple):
    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initramfs"

    @classmethod
    def built(cls, cache: Path = CACHE) -> Image:
        """The image, from the cache if it is there; else the kernel is downloaded, 70 MB, but not installed."""
        key = hashlib.sha256("\n".join((*MODULES, _INIT.read_text())).encode()).hexdigest()[:16]
        image = cls(cache / key)
        if image.initramfs.exists():
            return image
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not image.initramfs.exists():
                _build(image, cache)
        return image


def _build(image: Image, cache: Path) -> None:
    package = _kernel_package(cache)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        unpacked, files = Path(name) / "unpacked", Path(name) / "files"
        _run("dpkg-deb", "-x", str(package), str(unpacked))
        (release,) = [path.name for path in (unpacked / "lib" / "modules").iterdir()]
        _run("depmod", "-b", str(unpacked), release)
        for folder in ("bin", "dev", "proc", "sys", "exchange", "lower", "ram", "joined", "modules"):
            (files / folder).mkdir(parents=True)
        shutil.copy(_program("busybox"), files / "bin" / "busybox")
        order = _load_order(unpacked, release)
        for module in order:
            shutil.copy(module, files / "modules")
        (files / "modules" / "order").write_text("".join(f"{module.name}\n" for module in order))
        shutil.copy(_INIT, files / "init")
        (files / "init").chmod(0o755)
        image.folder.mkdir(exist_ok=True)
        shutil.copy(unpacked / "boot" / f"vmlinuz-{release}", image.kernel)
        names = "\n".join(str(path.relative_to(files)) for path in sorted(files.rglob("*")))
        packed = subprocess.run(
            ("cpio", "-o", "-H", "newc", "--quiet"), cwd=files, input=names.encode(), stdout=subprocess.PIPE, check=True
        )
        # Without compression: the emulated machine would unpack the image ten times slower than it reads it.
        unfinished = image.folder / "initramfs.new"
        unfinished.write_bytes(packed.stdout)
        unfinished.rename(image.initramfs)


def _load_order(unpacked: Path, release: str) -> list[Path]:
    """Modules in their load order, after the modules that they need."""
    told = _run("modprobe", "-d", str(unpacked), "-S", release, "--show-depends", "-a", *MODULES)
    paths = [Path(line.split()[1]) for line in told.splitlines() if line.startswith("insmod ")]
    return list(dict.fromkeys(paths))


def _kernel_package(cache: Path) -> Path:
    """The package of the kernel that Debian's metapackage names, as a file."""
    told = _run("apt-cache", "depends", _PACKAGE)
    names = [line.split()[-1] for line in told.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise OSError(f"apt knows no {_PACKAGE}: `apt-get update` first")
    found = sorted(cache.glob(f"{names[0]}_*.deb"))
    if not found:
        # The download runs as the user of the cache, because apt's own user may not write there.
        _run("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", names[0], folder=cache)
        found = sorted(cache.glob(f"{names[0]}_*.deb"))
    return found[-1]


def path() -> str:
    """The path of programs, including those of the administrator."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _program(name: str) -> str:
    found = shutil.which(name, path=path())
    if found is None:
        raise FileNotFoundError(f"there is no '{name}' here")
    return found


def _run(*argv: str, folder: Path | None = None) -> str:
    argv = (_program(argv[0]), *argv[1:])
    return subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
