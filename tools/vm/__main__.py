"""A command in an emulated machine with RDMA devices.

    python -m tools.vm run [--memory MIB] [--cpus N] [--timeout S] [--wires N] [--writable DIR]... COMMAND...
    python -m tools.vm build            downloads the kernel and makes the initramfs, if needed

Ends with the code of the command; 124 after a time-out, 125 if the machine did not start.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tools.vm.guest import FAILED, Guest, missing
from tools.vm.image import Image


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.vm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build")
    run = verbs.add_parser("run")
    run.add_argument("--memory", type=int, default=2048, metavar="MIB")
    run.add_argument("--cpus", type=int, default=2)
    run.add_argument("--timeout", type=float, default=300, metavar="S")
    run.add_argument("--wires", type=int, default=1)
    run.add_argument("--writable", type=Path, action="append", default=[], metavar="DIR")
    run.add_argument("--kernel-log", action="store_true", help="print what the kernel said, on stderr")
    run.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if lacking := missing():
        print(f"vm: {lacking}", file=sys.stderr)
        return FAILED
    try:
        image = Image.built()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"vm: no image: {error}", file=sys.stderr)
        return FAILED
    if options.verb == "build":
        print(image.folder)
        return 0
    if not options.command:
        run.error("no command")
    guest = Guest(image, memory=options.memory, cpus=options.cpus, wires=options.wires, writable=options.writable)
    code = guest.run(options.command, options.timeout)
    if options.kernel_log:
        print(guest.kernel_log, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
