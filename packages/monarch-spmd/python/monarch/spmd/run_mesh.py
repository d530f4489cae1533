"""The procs of a run as a mesh, for the programs of its ranks and of other ranks."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from monarch.extension.program import ProgramMesh, program_link
from monarch.spmd.errors import SPMDError


def run_mesh(run_id: str | None = None, *, ranks: Iterable[int] | None = None) -> ProgramMesh:
    """The ranks of a run, for the program of a rank: what `SPMDRun.procs` is for the client.

    Args:
        run_id: the `run_id` of another run of the same client; by default the run of this program.
        ranks: the numbers of some ranks; by default all.

    Returns:
        A name of the mesh, for calls that take a mesh `of` a run, as `monarch.rdma.weights.Weights.attach`. After a restart of that run it
        is the mesh of the new procs.

    Raises:
        TypeError: `run_id` is no text, or `ranks` are no numbers.
        ValueError: `ranks` is empty, or a number is negative.
        SPMDError: no run has started this process.

    ```python
    from pathlib import Path

    from monarch.actor import this_host
    from monarch.spmd import run

    Path("train.py").write_text("from monarch.spmd import run_mesh; assert run_mesh(ranks=[0]).ranks == (0,)")
    run(this_host(), ["torchrun", "--nproc-per-node=1", "train.py"]).result.get()
    ```
    """
    if run_id is not None and not isinstance(run_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"run_id={run_id!r}: expected a text, not {type(run_id).__name__}")
    try:
        chosen = None if ranks is None else tuple(map(index, ranks))
    except TypeError:
        raise TypeError(f"ranks={ranks!r}: expected numbers of ranks, as in ranks=[0, 1]") from None
    if chosen is not None and (not chosen or min(chosen) < 0):
        raise ValueError(f"ranks={list(chosen)}: expected at least one number from 0 on")
    if program_link() is None:
        raise SPMDError(
            "this process is no rank of a run",
            hint="start the program with monarch.spmd.run or `monarch run`; in an actor, use `SPMDRun.procs()`",
        )
    return ProgramMesh(run_id, chosen)
