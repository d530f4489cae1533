"""SkyPilotJob: its arguments, and how it differs from other jobs whose machines come from a launcher."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from monarch.job._files.contexts import logs_folder
from monarch.job._job.launcher import LogFile
from monarch.job._job.launcher_job import LauncherJob
from monarch.job.errors import JobError
from monarch.job.skypilot.arguments import checked, plain_resources
from monarch.job.skypilot.launcher import SkyPilotLauncher

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG_LINES = 2000


class SkyPilotJob(LauncherJob):
    """Nodes of one SkyPilot cluster, given to `meshes` (name to number of nodes) in their order.

    Args:
        meshes: how many nodes each mesh has; the cluster has the sum.
        resources: what each node has: a `sky.Resources`, or a dict as in a task's YAML; SkyPilot's default without it.
        cluster_name: the cluster's name in SkyPilot; `monarch-` and a part of the job's id by default.
        monarch_port: where workers listen; the next free port where it is taken.
        idle_minutes_to_autostop: minutes without a client after which workers end, and minutes without a task after which the cluster does.
        down_on_autostop: an idle cluster is removed; False: it is stopped.
        python_exe: the interpreter of the workers, as the nodes find it.
        setup_commands: shell commands that each node runs first. Then the client's version of monarch-jobs is installed if it is missing.
        workdir: a local folder that becomes the working directory of the nodes.
        file_mounts: path on the nodes to a local path or the URL of a bucket.
        envs: variables of the workers; printed with the plan, so no secrets.
        join_timeout: seconds that workers have to listen, from when the task runs.

    SkyPilot may be installed for this interpreter, or for another one that the setting `skypilot_python` names. Raises `TypeError` or
    `ValueError` for arguments that cannot be right; nothing is started before `apply` or `state`.

        job = SkyPilotJob({"trainers": 2}, resources={"infra": "kubernetes", "accelerators": "H100:8"}, idle_minutes_to_autostop=10)
        print(job.plan())
    """

    __module__ = "monarch.job.skypilot"
    kind = "skypilot"

    def __init__(
        self,
        meshes: dict[str, int],
        resources: Any = None,
        cluster_name: str | None = None,
        monarch_port: int = 22222,
        idle_minutes_to_autostop: int | None = None,
        down_on_autostop: bool = True,
        python_exe: str = "python",
        setup_commands: str | None = None,
        workdir: str | None = None,
        file_mounts: Mapping[str, str] | None = None,
        *,
        envs: Mapping[str, str] | None = None,
        join_timeout: float = 600,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        arguments["resources"] = plain_resources(resources)
        arguments["join_timeout"] = float(join_timeout)
        self._args = checked(arguments)

    def _launcher(self) -> SkyPilotLauncher:
        return SkyPilotLauncher(
            self._args, title=self._title, secret=self._secret, changed=self._note_change, apply_id=self.apply_id
        )  # fmt: skip

    def _note_change(self) -> None:
        # A new client finds the nodes in the state file without asking SkyPilot.
        self._save()

    def _sizes(self) -> dict[str, int]:
        return dict(self._args.meshes)

    def _arguments(self) -> dict[str, Any]:
        return self._args.model_dump(mode="json")

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        self._args = checked(saved)

    def _join_timeout(self) -> float | None:
        return self._args.join_timeout

    def _fetch_logs(self) -> list[LogFile]:
        """What the task has printed on all nodes, in one file: SkyPilot mixes their lines."""
        if self._ids is None or self.apply_id is None:
            return []
        text = self._launcher().logs(self._ids, _LOG_LINES)
        folder = logs_folder(self.apply_id)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, "skypilot.log")
        try:
            with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(text)
        except OSError as error:
            raise JobError(f"{path} cannot be written", title=self._title, cause=str(error)) from None
        return [LogFile("", 0, "system", path)]

    def _where(self) -> str:
        return f"SkyPilot's cluster {self._ids['cluster']}" if self._ids else "nothing was launched"
