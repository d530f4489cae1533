"""Hosts on one machine, from a terminal.

    python -m tools.netns up 3 [--name NAME]        until Ctrl-C, or the end of its input
    python -m tools.netns list
    python -m tools.netns exec h1 COMMAND...        runs it in the host, ends with its code
    python -m tools.netns cut h1 [--inbound | --outbound] [--from h2]
    python -m tools.netns reset h1
    python -m tools.netns refuse h1 PORT
    python -m tools.netns heal h1

Where several networks are up, `--network NAME` before the verb chooses one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from tools.netns.namespace import living, unavailable
from tools.netns.network import Network


def up(options: argparse.Namespace) -> int:
    if reason := unavailable():
        print(f"netns: {reason}", file=sys.stderr)
        return 1
    with Network(options.count, options.name) as network, contextlib.suppress(KeyboardInterrupt):
        print(network.name, *(host.name for host in network.hosts), flush=True)
        while os.read(0, 4096):
            pass
    return 0


def list_all(_: argparse.Namespace) -> int:
    for network, spaces in sorted(living().items()):
        print(network, *sorted(spaces.keys() - {"switch"}))
    return 0


def on_host(options: argparse.Namespace) -> int:
    _, hosts = Network.find(options.network)
    host = hosts[options.host]
    if options.verb == "exec":
        return host.run(*options.command, check=False).returncode
    if options.verb == "cut":
        one_way = options.inbound or options.outbound
        inbound, outbound = options.inbound or not one_way, options.outbound or not one_way
        if options.other is None:
            host.cut(inbound=inbound, outbound=outbound)
        else:
            if outbound:
                host.drop("iifname", host.name, "oifname", options.other)
            if inbound:
                host.drop("iifname", options.other, "oifname", host.name)
    elif options.verb == "reset":
        host.reset()
    elif options.verb == "refuse":
        host.refuse(options.port)
    else:
        host.heal()
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="netns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("up")
    verb.add_argument("count", type=int)
    verb.add_argument("--name")
    verb.set_defaults(action=up)
    verbs.add_parser("list").set_defaults(action=list_all)
    for name in ("exec", "cut", "reset", "refuse", "heal"):
        verb = verbs.add_parser(name)
        verb.add_argument("host")
        verb.set_defaults(action=on_host)
        if name == "exec":
            verb.add_argument("command", nargs=argparse.REMAINDER)
        elif name == "refuse":
            verb.add_argument("port", type=int)
        elif name == "cut":
            verb.add_argument("--inbound", action="store_true", help="only what goes to it")
            verb.add_argument("--outbound", action="store_true", help="only what comes from it")
            verb.add_argument("--from", dest="other", help="only the link to this host")
    options = parser.parse_args(arguments)
    try:
        return options.action(options)
    except (LookupError, OSError) as error:
        print(f"netns: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
