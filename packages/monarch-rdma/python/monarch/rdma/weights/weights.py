"""How weights are published and taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch import extension
from monarch.extension.program import ProgramMesh, program_link
from monarch.rdma._buffers.arguments import check_timeout
from monarch.rdma._process.allocation import allocate
from monarch.rdma.weights import attaching, member_source, program_source, program_target
from monarch.rdma.weights.arguments import check_buffers, check_cast, check_columns, check_fan_out, check_name, check_tensors, time_limit
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
    def publish(name: str, state_dict: Mapping[str, Any], *, buffers: int = 2, wait: float | None = None, columns: int = 1) -> Source:
        """Publishes the tensors of this rank as version 0. Each rank of a mesh calls it.

        Args:
            name: what targets ask for. A process publishes a name once.
            state_dict: names of global tensors, and what this rank has of them: a `DTensor`, a pair of a tensor and a `Box`, or a tensor
                of PyTorch or NumPy that is the whole.
            buffers: 2: readers read copies of the last two versions. 1: they read the tensors themselves, and an update waits for them.
            wait: seconds that an update waits for readers of what it overwrites, and for those that wait to read it; they read anew
                afterwards, and `Source.overdue` counts them. By default 1 s with one buffer, and 0 with two.
            columns: the number of parts of equal size into which targets cut the last dimension, as tensor parallelism of that size does.
                The copies have each part in one piece, which is one read where columns of rows are many. Other cuts are possible as ever.
                Needs two buffers.

        Returns:
            The source.

        Raises:
            TypeError: an argument is of another type, or a value is no tensor.
            ValueError: `buffers` is not 1 or 2, `columns` is not positive, or needs two buffers, a tensor cannot be described, or the
                process publishes the name already.
            RDMAUnsupportedError: a tensor is on a device that cannot be read.
            RDMATimeoutError: in the program of a run: its proc has not answered within 60 s, or before an earlier deadline.

        ```python
        import numpy as np
        from monarch.rdma.weights import Box, Weights

        rows = np.zeros((4, 16))
        with Weights.publish("rows", {"weight": (rows, Box((8, 0), (4, 16), (32, 16)))}) as source:
            assert source.name == "rows"
        ```
        """
        count, state = check_buffers(buffers), check_tensors("state_dict", state_dict)
        parts = check_columns(columns, count)
        seconds = check_timeout((_WAIT if count == 1 else 0) if wait is None else wait, "wait")
        link = program_link()
        if link is None:
            return Source(member_source.publish(check_name(name), state, count, parts, seconds))
        return Source(program_source.publish(link, check_name(name), state, count, parts, seconds))

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
                `monarch.spmd` is `SPMDRun.procs()`, and in the program of a rank `monarch.spmd.run_mesh()`; such a program takes handles
                of other meshes of its client, too.
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
            RDMAPeerLostError: a rank has ended, or the run of `of` has ended for good.
            RDMATimeoutError: a rank does not answer.
            TypeError: `of` is no mesh, another argument is of another type, or a value is no tensor.
            ValueError: `buffers` is not 1 or 2, `fan_out` is negative, or a tensor is read-only, has several items in the same memory, or
                cannot be described.

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
        count = check_buffers(buffers)
        wanted = attaching.Wanted(check_name(name), check_cast(cast, count), check_fan_out(fan_out), time_limit(timeout))
        state = check_tensors("into", into)
        if isinstance(of, ProgramMesh):
            return program_target.attach(wanted, of, state, count)
        mesh = attaching.members(of)
        if program_link() is not None and mesh.job != extension.member().job:
            return program_target.attach(wanted, mesh, state, count)
        tensors = attaching.target_tensors(state)
        room = allocate if count > 1 else None
        puller = attaching.attached(
            wanted, wanted.until(), mesh, tensors.table, lambda pieces, feeds: Puller(wanted.name, tensors, pieces, feeds, room)
        )
        return Target(puller, lambda version: version_of_all(wanted.name, mesh, version))
