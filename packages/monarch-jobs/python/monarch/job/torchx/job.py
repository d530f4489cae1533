"""TorchXJob: its arguments, and how it differs from other jobs whose machines come from a launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.job._job.arguments import checked
from monarch.job._job.launcher import LogFile
from monarch.job._job.launcher_job import LauncherJob
from monarch.job.torchx.application import check_scheduler, sizes, to_json
from monarch.job.torchx.arguments import TorchXArguments
from monarch.job.torchx.launcher import TorchXLauncher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.specs import AppDef  # pyright: ignore[reportMissingTypeStubs]


class TorchXJob(LauncherJob):
    """The roles of a TorchX application as meshes: a replica is a host.

    Args:
        appdef: the application. Names, replicas, resources, images and mounts of its roles are kept; the command of each is replaced by a
            worker, and its environment by what the worker needs.
        scheduler: the name of a TorchX scheduler.
        scheduler_cfg: its options, as `torchx runopts` lists them.
        workspace: a folder that client and replicas find at the same path; `.monarch/torchx` in the working directory by default.
        python_exe: the interpreter of the workers; the client's own with `local_cwd` and `slurm`, else `python`, by default.
        monarch_port: where workers listen; the next free port where it is taken.
        join_timeout: seconds that workers have to listen, from when the application runs.

    Raises `TypeError` or `ValueError` for arguments that cannot be right; `SubmitError` when the job is applied, for what TorchX refuses.

        job = TorchXJob(AppDef("app", [Role("trainers", image="", entrypoint="python", num_replicas=2)]))
        print(job.plan())
    """

    __module__ = "monarch.job.torchx"
    kind = "torchx"

    def __init__(
        self,
        appdef: AppDef,
        scheduler: str = "local_cwd",
        scheduler_cfg: Mapping[str, Any] | None = None,
        *,
        workspace: str | None = None,
        python_exe: str | None = None,
        monarch_port: int = 22222,
        join_timeout: float = 120,
    ) -> None:
        super().__init__()
        self._args = checked(
            TorchXArguments,
            {
                "app": to_json(appdef),
                "scheduler": check_scheduler(scheduler),
                "scheduler_cfg": dict(scheduler_cfg or {}),
                "workspace": workspace,
                "python_exe": python_exe,
                "monarch_port": monarch_port,
                "join_timeout": float(join_timeout),
            },
            "TorchXJob",
        )

    def _launcher(self) -> TorchXLauncher:
        return TorchXLauncher(self._args, self._title, self.apply_id, self._secret)

    def _sizes(self) -> dict[str, int]:
        return sizes(self._args.app)

    def _arguments(self) -> dict[str, Any]:
        return self._args.model_dump(mode="json")

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        self._args = checked(TorchXArguments, saved, "TorchXJob")

    def _join_timeout(self) -> float | None:
        return self._args.join_timeout

    def _where(self) -> str:
        return f"TorchX application {self._ids['handle']}" if self._ids else "nothing was submitted"

    def _logs(self) -> list[LogFile]:
        if self._ids is None:
            return []
        paths = self._launcher().log_paths(self._ids)
        found = [LogFile("", 0, "system", paths[None])]
        first = 0
        for role, count in self._sizes().items():
            found += [LogFile(role, index, stream, paths[first + index, stream]) for index in range(count) for stream in ("out", "err")]
            first += count
        return found
