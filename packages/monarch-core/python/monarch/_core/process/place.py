"""What a proc has from its spawner: its place in the mesh in which it was spawned, and the settings of its start.

The set-up of the proc fills it before the first actor. The client has no mesh; its own mesh of one is made with its first use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.mesh_info import MeshInfo


class Place:
    """The place of a process."""

    __slots__ = ("bootstrap_failure", "info", "log_dir", "python_executable", "rank", "start_variables")

    def __init__(self) -> None:
        # The mesh in which the proc was spawned; else the mesh of this process alone.
        self.info: MeshInfo | None = None
        self.rank = 0
        # In a proc whose `bootstrap` has failed: the error, and its traceback. No actor runs there.
        self.bootstrap_failure: tuple[str, str] | None = None
        self.python_executable: str | None = None
        # The variables that an interpreter reads only when it starts, as they were in the zygote.
        self.start_variables: dict[str, str] = {}
        # The directory of the job's log files on this machine.
        self.log_dir = ""
