"""A machine with RDMA devices, emulated: Debian's kernel in QEMU, this machine's files, and soft-RoCE on virtual wires.

    python -m tools.vm run python -m pytest -m verbs packages/monarch-rdma

The command runs as root in the same directory and environment, and its exit code is that of the tool. All files that it writes are lost,
except below a `--writable` directory. `python` is Debian's interpreter with the packages of the interpreter that runs the tool, because
Debian's pyverbs needs Debian's. There is no network but the wires; each has a device at both ends, `rxe0` and `rxe1` for the first.
QEMU interprets the code of the emulated machine: it runs ten times slower than here, and figures are good for ratios only.

| file | noun |
|---|---|
| `image` | a kernel and an initramfs, made once from Debian's packages and kept in `.hatch/vm` |
| `guest` | one run of a command |
| `init.sh` | the first process of the emulated machine: mounts, wires, command, power off |
| `wire.sh` | one more wire with two devices |
"""

from tools.vm.guest import Guest, missing
from tools.vm.image import Image

__all__ = ["Guest", "Image", "missing"]
