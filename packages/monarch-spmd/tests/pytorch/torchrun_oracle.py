"""What the parser of torchrun makes of command lines: reads them as JSON, `[[words, variables], ...]`, and answers with JSON.

Run by an interpreter that has PyTorch, in a folder of its own: torchrun makes folders for logs while it checks its options.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import Std


def main() -> None:
    environ = dict(os.environ)
    answers: list[dict[str, Any]] = []
    for words, variables in json.load(sys.stdin):
        os.environ.clear()
        os.environ.update(environ, **variables)
        answers.append(_answer(words))
    options = [list(action.option_strings) for action in run.get_args_parser()._actions if action.option_strings]
    json.dump({"options": options, "answers": answers}, sys.stdout)


def _answer(words: list[str]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = run.parse_args(words)
            config, command, _ = run.config_from_args(args)
    except SystemExit:
        return {"refused": said.getvalue()}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {
        "program": args.training_script,
        "arguments": args.training_script_args,
        "kind": "path" if callable(command) else "command" if args.no_python else "module" if args.module else "script",
        "hosts": [config.min_nodes, config.max_nodes],
        "per_host": config.nproc_per_node,
        "max_restarts": config.max_restarts,
        "role": config.role,
        "run_id": config.run_id,
        "master": [args.master_addr, args.master_port],
        "local_addr": config.local_addr,
        "standalone": args.standalone,
        "virtual_local_rank": config.virtual_local_rank,
        "shutdown_timeout": args.shutdown_timeout,
        "log_dir": args.log_dir,
        "redirects": _streams(args.redirects),
        "tees": _streams(args.tee),
        "shown": sorted(set(map(int, args.local_ranks_filter.split(",")))) if args.local_ranks_filter else None,
    }


def _streams(text: str) -> dict[str, int]:
    found = Std.from_str(text)
    by_rank = found.items() if isinstance(found, dict) else [("all", found)]
    return {str(rank): int(streams) for rank, streams in by_rank}


if __name__ == "__main__":
    main()
