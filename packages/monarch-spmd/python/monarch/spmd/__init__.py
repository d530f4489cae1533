"""Programs of torchrun on a mesh of hosts; a program that reads RANK and WORLD_SIZE runs unchanged. Each name is loaded on first use.

A rank is a proc with a `Rank` actor (`rank.py`), and the program is a guarded child process of this proc. Output goes from the pipe of the
program through the actor's buffer to the client, by calls of the client, so a slow client pauses the program. `attempts.py` repeats an
attempt as `policy.py` decides. `policy.py`, `snapshot_choice.py`, `torchrun.py` and `environment.py` do no I/O.
"""

from __future__ import annotations

from monarch.extension.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.spmd.actor import SPMDActor as SPMDActor
    from monarch.spmd.actor import setup_torch_elastic_env as setup_torch_elastic_env
    from monarch.spmd.actor import setup_torch_elastic_env_async as setup_torch_elastic_env_async
    from monarch.spmd.address import AddrType as AddrType
    from monarch.spmd.address import get_ipaddr as get_ipaddr
    from monarch.spmd.attempts import RunResult as RunResult
    from monarch.spmd.errors import LaunchArgumentError as LaunchArgumentError
    from monarch.spmd.errors import RankFailure as RankFailure
    from monarch.spmd.errors import SPMDError as SPMDError
    from monarch.spmd.errors import SPMDFailure as SPMDFailure
    from monarch.spmd.policy import RestartPolicy as RestartPolicy
    from monarch.spmd.run_mesh import run_mesh as run_mesh
    from monarch.spmd.snapshots import Snapshots as Snapshots
    from monarch.spmd.spmd_run import SPMDRun as SPMDRun
    from monarch.spmd.spmd_run import run as run
    from monarch.spmd.torchrun import LaunchSpec as LaunchSpec
    from monarch.spmd.torchrun import parse_torchrun as parse_torchrun

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "actor": ("SPMDActor", "setup_torch_elastic_env", "setup_torch_elastic_env_async"),
    "address": ("AddrType", "get_ipaddr"),
    "attempts": ("RunResult",),
    "errors": ("LaunchArgumentError", "RankFailure", "SPMDError", "SPMDFailure"),
    "policy": ("RestartPolicy",),
    "run_mesh": ("run_mesh",),
    "snapshots": ("Snapshots",),
    "spmd_run": ("SPMDRun", "run"),
    "torchrun": ("LaunchSpec", "parse_torchrun"),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES)
