"""How weights are published and taken."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from monarch.actor import deadline_left
from monarch.extension.program import ProgramMesh, program_link
from monarch.rdma._buffers.arguments import check_timeout
from monarch.rdma._process.allocation import allocate
from monarch.rdma.weights import attaching, member_source, program_source, program_target
from monarch.rdma.weights.puller import Puller
from monarch.rdma.weights.source import Source
from monarch.rdma.weights.target import Target
from monarch.rdma.weights.waiting import version_of_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.actor import ActorMesh, ProcMesh

# Seconds that an update waits for readers of the weights themselves.
_WAIT = 1.0


class Weights:
    """Weights of a mesh for the tensors of other processes, whose layouts may differ. The two methods are all there is.

    ```python
    import numpy as np
    from monarch.rdma.weights import Weights

    with Weights.publish("doc", {"layer": np.ones(4)}) as source:
        assert source.version == 0
    ```
    """

    @staticmethod
    def publish(name: str, state_dict: Mapping[str, Any], *, buffers: int = 2, wait: float | None = None) -> Source:
        """Publishes the tensors of this rank as version 0. Each rank of a mesh calls it.

        Args:
            name: what targets ask for. A process publishes a name once.
            state_dict: names of global tensors, and what this rank has of them: a `DTensor`, a pair of a tensor and a `Box`, or a tensor
                of PyTorch or NumPy that is the whole.
            buffers: 2: readers read copies of the last two versions. 1: they read the tensors themselves, and an update waits for them.
            wait: seconds that an update waits for readers of what it overwrites, and for those that wait to read it; they read anew
                afterwards, and `Source.overdue` counts them. By default 1 s with one buffer, and 0 with two.

        Returns:
            The source.

        Raises:
            TypeError: a value is no tensor.
            ValueError: a tensor cannot be described, or the process publishes the name already.
            RDMAUnsupportedError: a tensor is on a device that cannot be read.

        ```python
        import numpy as np
        from monarch.rdma.weights import Box, Weights

        rows = np.zeros((4, 16))
        with Weights.publish("rows", {"weight": (rows, Box((8, 0), (4, 16), (32, 16)))}) as source:
            assert source.name == "rows"
        ```
        """
        if buffers not in (1, 2):
            raise ValueError(f"buffers must be 1 or 2, got {buffers!r}")
        seconds = check_timeout((_WAIT if buffers == 1 else 0) if wait is None else wait, "wait")
        link = program_link()
        if link is None:
            return Source(member_source.publish(_checked(name), dict(state_dict), buffers, seconds))
        return Source(program_source.publish(link, _checked(name), dict(state_dict), buffers, seconds))

    @staticmethod
    def attach(
        name: str,
        *,
        of: ProcMesh | ActorMesh[Any] | ProgramMesh,
        into: Mapping[str, Any],
        buffers: int = 2,
        cast: bool = False,
        fan_out: int = 2,
        timeout: float = 60,
    ) -> Target:
        """Plans how the tensors of this rank get the weights of a mesh.

        Args:
            name: what the mesh has published.
            of: the mesh whose ranks publish; the call waits until all of them do. The mesh of a run of
                `monarch.spmd` is `SPMDRun.procs()`, and in the program of a rank `monarch.spmd.run_mesh()`.
            into: names of global tensors, and what this rank takes of them, as in `publish`.
            buffers: 2: bytes arrive in a memory of the size of the weights, so that a failed pull changes nothing. 1: in the tensors.
            cast: dtypes may differ; needs two buffers.
            fan_out: of the targets that need the same boxes, how many read from the sources; and how many read from each of these, and so
                on. Targets with one buffer serve no others. 0: this one reads from the sources, and serves none.
            timeout: seconds for the answers of all ranks; a deadline that is earlier counts.

        Returns:
            The target, whose tensors are unchanged so far.

        Raises:
            LayoutError: the sources do not cover a tensor, or it has another shape or dtype there.
            NotPublishedError: ranks publish no weights of this name when the time is up; the text has their numbers.
            RDMAPeerLostError: a rank has ended.
            RDMATimeoutError: a rank does not answer.
            TypeError: `of` is no mesh, `fan_out` is no number, or a value is no tensor.
            ValueError: `fan_out` is negative, or a tensor is read-only, or cannot be described.

        ```python
        import numpy as np
        from monarch.actor import Actor, endpoint, this_host
        from monarch.rdma.weights import Weights

        class Trainer(Actor):
            @endpoint
            def publish(self) -> None:
                self.source = Weights.publish("policy", {"layer": np.ones(4)})

        with this_host().spawn_procs({"procs": 1}) as procs:
            trainers = procs.spawn("trainers", Trainer)
            trainers.publish.call().get()
            mine = {"layer": np.zeros(4)}
            Weights.attach("policy", of=trainers, into=mine).pull().get()
            assert mine["layer"].sum() == 4
        ```
        """
        if buffers not in (1, 2):
            raise ValueError(f"buffers must be 1 or 2, got {buffers!r}")
        if cast and buffers == 1:
            raise ValueError("cast=True converts on the way from a second buffer: it needs buffers=2")
        if index(fan_out) < 0:
            raise ValueError(f"fan_out must not be negative, got {fan_out!r}")
        seconds, left = check_timeout(timeout), deadline_left()
        if left is not None:
            seconds = min(seconds, left)
        wanted = attaching.Wanted(_checked(name), bool(cast), index(fan_out), seconds)
        if isinstance(of, ProgramMesh):
            return program_target.attach(wanted, of, into, buffers)
        mesh = attaching.members(of)
        tensors = attaching.target_tensors(into)
        room = allocate if buffers > 1 else None
        puller = attaching.attached(
            wanted, wanted.until(), mesh, tensors.table, lambda pieces, feeds: Puller(wanted.name, tensors, pieces, feeds, room)
        )
        return Target(puller, lambda version: version_of_all(wanted.name, mesh, version))


def _checked(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of weights is a text, got {name!r}")
    return name
