"""One run of a command in the emulated machine. It leaves nothing when QEMU or its owner ends."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.project import CORE, FS, JOBS, RDMA, ROOT, TELEMETRY
from tools.vm.image import Image, path

TIMED_OUT, FAILED = 124, 125
_QEMU = "qemu-system-x86_64"
_PROGRAMS = (_QEMU, "busybox", "cpio", "modprobe", "depmod", "setpriv", "rdma", "apt-get", "dpkg-deb")
_PYVERBS = "/usr/lib/python3/dist-packages/pyverbs"
_PYTHON = "/usr/bin/python3"
# With these options a boot takes three seconds. They skip calibrations, and protections that an emulated processor does not need.
_KERNEL = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check rcupdate.rcu_expedited=1 random.trust_cpu=1"


def missing() -> str:
    """The missing programs; empty if all are installed."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=path()) is None]
    if not os.path.isdir(_PYVERBS):
        lacking.append("python3-pyverbs")
    return f"missing here: {', '.join(lacking)}; `tools/system_packages.sh vm` installs what is needed" if lacking else ""


class Guest:
    """A machine that has not been booted yet."""

    def __init__(self, image: Image, *, memory: int = 2048, cpus: int = 2, wires: int = 1, writable: Sequence[Path] = ()) -> None:
        self._image = image
        self._memory = memory
        self._cpus = cpus
        self._wires = wires
        self._writable = [folder.resolve(strict=True) for folder in writable]
        self.kernel_log = ""

    def run(self, command: Sequence[str], timeout: float) -> int:
        """The exit code of the command; its output goes to this process's streams."""
        sys.stdout.flush()
        sys.stderr.flush()
        with tempfile.TemporaryDirectory(prefix="monarch-vm-") as name:
            exchange = Path(name)
            (exchange / "writable").write_text("".join(f"{folder}\n" for folder in self._writable))
            (exchange / "command").write_text(self._script(command))
            _python(exchange / "python")
            # QEMU does not accept the standard streams.
            streams = os.dup(1), os.dup(2)
            try:
                ended = subprocess.run(self._argv(exchange, streams), stdin=subprocess.DEVNULL, timeout=timeout, pass_fds=streams)
            except subprocess.TimeoutExpired:
                print(f"vm: no end within {timeout:g} s", file=sys.stderr)
                return TIMED_OUT
            finally:
                for stream in streams:
                    os.close(stream)
                self.kernel_log = _text(exchange / "kernel.log")
            code = _text(exchange / "code").strip()
            if code:
                return int(code)
            print(f"vm: ended without a result (QEMU: {ended.returncode})\n{self.kernel_log[-2000:]}", file=sys.stderr)
            return FAILED

    def _script(self, command: Sequence[str]) -> str:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in os.environ.items() if name.isidentifier()]
        wire = Path(__file__).with_name("wire.sh")
        return "\n".join(
            [
                *lines,
                "export PATH=/run/exchange:$PATH:/usr/sbin:/sbin",
                "ip link set lo up; ulimit -l unlimited",
                *(f"bash {shlex.quote(str(wire))} {i} || exit {FAILED}" for i in range(self._wires)),
                f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}",
                "",
            ]
        )

    def _argv(self, exchange: Path, streams: tuple[int, int]) -> list[str]:
        argv = ["setpriv", "--pdeathsig", "KILL", _QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        argv += ["-M", "q35,hpet=off", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off,pcid=off"]
        argv += ["-m", str(self._memory), "-smp", str(self._cpus)]
        argv += ["-kernel", str(self._image.kernel), "-initrd", str(self._image.initramfs), "-append", _KERNEL]
        argv += ["-chardev", f"file,id=log,path={exchange}/kernel.log", "-serial", "chardev:log", "-device", "virtio-serial-pci"]
        for number, stream in enumerate(streams, 1):
            argv += ["-add-fd", f"fd={stream},set={number}", "-chardev", f"file,id=out{number},path=/dev/fdset/{number},append=on"]
            argv += ["-device", f"virtserialport,chardev=out{number},nr={number}"]
        shares = [("root", Path("/"), "readonly=on,multidevs=remap"), ("exchange", exchange, "multidevs=remap")]
        shares += [(f"writable{i}", folder, "multidevs=remap") for i, folder in enumerate(self._writable)]
        for tag, folder, options in shares:
            argv += ["-fsdev", f"local,id={tag},path={folder},security_model=none,{options}"]
            argv += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return argv


def _python(script: Path) -> None:
    """Writes a script that runs Debian's interpreter, which finds pyverbs, with the packages of this interpreter."""
    folders = [package / "python" for package in (CORE, JOBS, RDMA, FS, TELEMETRY)] + [ROOT, Path(sysconfig.get_path("purelib"))]
    path = ":".join(str(folder) for folder in folders)
    script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {_PYTHON} "$@"\n')
    script.chmod(0o755)


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
