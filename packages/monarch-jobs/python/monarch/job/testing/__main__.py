"""`python -m monarch.job.testing MODULE.ATTRIBUTE`."""

from __future__ import annotations

import importlib
import os
import sys

from monarch.job import testing


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or "." not in arguments[0]:
        print(testing.__doc__, file=sys.stderr)
        return 2
    sys.path.append(os.getcwd())
    module, _, attribute = arguments[0].rpartition(".")
    testing.conformance(getattr(importlib.import_module(module), attribute))
    print(f"{arguments[0]} conforms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
