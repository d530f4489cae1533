"""Runs programs with faults, and measures the output of `monarch diagnose` for each.

python -m bench.faults --list               the names
python -m bench.faults NAME                 runs one program until Ctrl-C; diagnose it in another terminal
python -m bench.faults --measure [NAME...]  runs each, diagnoses it once, and prints a row: place of the cause, seconds, bytes
"""

from __future__ import annotations

import argparse
import sys

from bench.faults.catalog import ALL, by_name
from bench.faults.measure import measure


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="the names, one a line")
    parser.add_argument("--measure", action="store_true", help="measure these programs, or all")
    parser.add_argument("--show", action="store_true", help="with --measure: print each diagnosis")
    given = parser.parse_args()
    if given.list:
        for one in ALL:
            print(one.name, "healthy" if not one.cause else one.cause, sep="\t")
        return 0
    if given.measure:
        return measure([by_name(name) for name in given.names] or list(ALL), given.show)
    if len(given.names) != 1:
        parser.error("give one NAME, --list or --measure")
    by_name(given.names[0]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
