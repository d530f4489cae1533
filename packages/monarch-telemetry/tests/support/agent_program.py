"""The verbs `query` and `mcp` over a made-up job with a fault: `python agent_program.py FAULT VERB [ARGUMENT...]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from support import made_up_faults as job
from support.engine import Engine

from monarch.telemetry import _cli
from monarch.telemetry._agents.actions import Done


class Actions:
    """Does nothing but show what was asked for, on stdout too: a handler may print."""

    def act(self, action: str, target: str, arguments: Mapping[str, object]) -> Done:
        print("acting", flush=True)
        return Done(True, f"{action} {target} {dict(arguments)}")


def main(fault: str, verb: str, *arguments: str) -> int:
    rows = job.healthy()
    job.FAULTS[fault](rows)
    engine = Engine(job.batches(rows))
    _cli._engine = lambda *_: engine
    _cli._actions = lambda *_: Actions()
    return int({"query": _cli.query, "mcp": _cli.mcp}[verb].main(arguments, standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
