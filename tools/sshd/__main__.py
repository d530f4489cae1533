"""Hosts with an sshd each on this machine.

    python -m tools.sshd up DIR [NAME...]
    python -m tools.sshd down DIR

`up` returns when each listens and prints the command for ssh.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import standing
from tools.sshd.hosts import SshHosts, missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.sshd", description="Hosts with an sshd each on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start the hosts and wait until they listen")
    up.add_argument("directory", type=Path, metavar="DIR")
    up.add_argument("names", nargs="*", default=["h0"], metavar="NAME")
    down = verbs.add_parser("down", help="end them, with all that was started over ssh")
    down.add_argument("directory", type=Path, metavar="DIR")
    options = parser.parse_args()
    if options.verb == "down":
        return standing.down(options.directory)
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 1
    hosts = SshHosts(options.directory, options.names)
    return standing.up(options.directory, hosts, "\n".join(f"ssh {' '.join(hosts.ssh_args)} {name}" for name in hosts.names))


if __name__ == "__main__":
    sys.exit(main())
