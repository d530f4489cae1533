"""SlurmJob: its arguments, and how it differs from other jobs whose machines come from a launcher."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from monarch.job._files import credentials
from monarch.job._job import saved
from monarch.job._job.gateway import attach_gateway
from monarch.job._job.job_state import JobState, check_count, check_mesh_names
from monarch.job._job.launcher import LogFile, Plan
from monarch.job._job.launcher_job import LauncherJob
from monarch.job._job.watch import EndWatch
from monarch.job._machine.commands import Commands
from monarch.job._machine.notice import notice
from monarch.job.errors import CredentialsError, JobError, SubmitError
from monarch.job.local import BatchJob, batch_path
from monarch.job.slurm.arguments import checked
from monarch.job.slurm.launcher import SlurmLauncher, inside
from monarch.job.slurm.output import COMPLETING, SINFO_FORMAT, from_sinfo, share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class SlurmJob(LauncherJob):
    """Nodes of a SLURM cluster, given to `meshes` (name to number of nodes) in their order.

    Args:
        meshes: how many nodes each mesh has.
        python_exe: the interpreter of the workers, as the nodes find it.
        slurm_args: further options of sbatch, one a string; they come after ours.
        monarch_port: where workers listen; the next free port where it is taken.
        job_name, ntasks_per_node, time_limit, partition, exclusive, gpus_per_node, cpus_per_task, mem, account, qos, gres: as for sbatch.
        log_dir: where the output of the job and its workers goes; `job_dir` by default.
        job_start_timeout: seconds in the queue after which the job is given up; without it, it waits.
        out_of_cluster: this machine is not in the cluster: needs `via_ssh` or `attach_to`.
        attach_to: address of a gateway that reaches the hosts.
        bind_to: where workers listen: a host name or IP address without a port; all interfaces by default.
        mesh_args: options of sbatch for single meshes, which makes the job heterogeneous: one component a mesh.
        min_nodes: start with that many nodes where there are no more; the last meshes are then smaller.
        spares: further nodes, with workers, that `heal` uses where others are lost.
        requeue: may SLURM start the job again after a preemption or the loss of a node?
        job_dir: a folder on a file system that client and nodes share; `.monarch/slurm` in the working directory by default.
        via_ssh: a login node; all commands go through one ssh connection to it, and the ports of the workers too.
        join_timeout: seconds that workers have to listen, from when the job runs.

    Raises `TypeError` or `ValueError` for arguments that cannot be right; nothing is started before `apply` or `state`.

    ```python
    from monarch.job import SlurmJob

    job = SlurmJob({"trainers": 4}, gpus_per_node=8, time_limit="02:00:00")
    assert "#SBATCH --nodes=4" in job.plan().text  # job.state() submits it
    ```
    """

    __module__ = "monarch.job"
    kind = "slurm"
    runs_scripts: ClassVar[bool] = True

    def __init__(
        self,
        meshes: dict[str, int],
        python_exe: str = "python",
        slurm_args: Sequence[str] = (),
        monarch_port: int = 22222,
        job_name: str = "monarch_job",
        ntasks_per_node: int = 1,
        time_limit: str | None = None,
        partition: str | None = None,
        log_dir: str | None = None,
        exclusive: bool = True,
        gpus_per_node: int | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: int | None = None,
        account: str | None = None,
        qos: str | None = None,
        out_of_cluster: bool = False,
        attach_to: str | None = None,
        bind_to: str | None = None,
        *,
        gres: str | None = None,
        mesh_args: Mapping[str, Sequence[str]] | None = None,
        min_nodes: int | None = None,
        spares: int = 0,
        requeue: bool = False,
        job_dir: str | None = None,
        via_ssh: str | None = None,
        join_timeout: float = 120,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        if isinstance(slurm_args, str):
            raise TypeError("SlurmJob: slurm_args is a sequence of options, not one text")
        arguments["slurm_args"] = tuple(slurm_args)
        arguments["join_timeout"] = float(join_timeout)
        if mesh_args is not None:
            arguments["mesh_args"] = {name: tuple(options) for name, options in mesh_args.items()}
        check_mesh_names(meshes)
        arguments["meshes"] = {name: check_count(name, count) for name, count in meshes.items()}
        self._args = checked(arguments)

    def add_mesh(self, name: str, num_nodes: int) -> None:
        """One more mesh; `ValueError` where there is one of that name. Before the job is applied."""
        check_mesh_names([name])
        if name in self._args.meshes:
            raise ValueError(f"there is a mesh '{name}' already")
        self._change(meshes={**self._args.meshes, name: check_count(name, num_nodes)})

    def share_node(self, tasks_per_node: int, gpus_per_task: int, partition: str) -> None:
        """Takes part of each node: as many tasks and GPUs as given, and cpus and memory of the node in proportion, as sinfo has them."""
        if self._args.gpus_per_node is not None:
            raise ValueError("share_node says how many GPUs there are: leave out gpus_per_node")
        self._change(exclusive=False, ntasks_per_node=tasks_per_node, gpus_per_task=gpus_per_task, partition=partition)

    def _change(self, **changes: Any) -> None:
        if self.active:
            raise RuntimeError(f"{self._title} is submitted: what it asks for cannot be changed")
        self._args = checked({**self._args.model_dump(), **changes})

    def plan(self) -> Plan:
        if not self._args.meshes:
            raise ValueError("SlurmJob without a mesh: nothing to submit")
        return self._launcher().plan()

    def _launcher(self) -> SlurmLauncher:
        if self._args.gpus_per_task is not None:
            self._resolve_share()
        return SlurmLauncher(
            self._args, title=self._title, secret=self._secret, client_script=self._client_script, socket=(self.apply_id or "new")[:8]
        )

    def _resolve_share(self) -> None:
        partition = self._args.partition or ""
        commands = Commands(self._title, self._args.via_ssh)
        result = commands.run("sinfo", "-h", "-e", "-p", partition, "-o", SINFO_FORMAT)
        size = from_sinfo(result.out)
        if result.code or size is None:
            what = f"{result.command} does not say what the nodes of partition '{partition}' have"
            raise SubmitError(what, title=self._title, cause=result.words, command=result.command, exit_code=result.code)
        part = share(size, self._args.ntasks_per_node, self._args.gpus_per_task or 0)
        own = {name: value for name, value in part._asdict().items() if getattr(self._args, name) is None}
        self._args = checked({**self._args.model_dump(), **own, "gpus_per_task": None})

    def _sizes(self) -> dict[str, int]:
        if self._ids is not None:
            return {name: len(ranks) for name, ranks in self._ids["places"].items()}
        return dict(self._args.meshes)

    def _arguments(self) -> dict[str, Any]:
        return self._args.model_dump(mode="json")

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        # JSON has no tuples.
        arguments = {**saved, "slurm_args": tuple(saved["slurm_args"])}
        if saved.get("mesh_args") is not None:
            arguments["mesh_args"] = {name: tuple(options) for name, options in saved["mesh_args"].items()}
        self._args = checked(arguments)

    def _join_timeout(self) -> float | None:
        return self._args.join_timeout

    def _create(self, client_script: str | None) -> None:
        if client_script is None:
            return super()._create(None)
        if not self._args.via_ssh:
            client_script = os.path.abspath(client_script)
            if not os.path.isfile(client_script):
                raise SubmitError(f"no such script: {client_script}", title=self._title)
        path = batch_path(self)
        super()._create(client_script)
        assert self._ids is not None and self.apply_id is not None
        self.__core__.active = True
        launcher = self._launcher()
        if path is not None:
            saved.write(path, self)
        else:
            notice(f"monarch: {self._title} is in {self._ids['directory']}/job.json: another job is the current one here")
        if not self._args.via_ssh:
            launcher.write(self._ids, "credentials", f"{credentials.directory(self.apply_id)}\n".encode())
        # The script of the job waits for this one.
        launcher.write(self._ids, "job.json", saved.encode(BatchJob(self)))

    def _needs_kill_at_exit(self) -> bool:
        # The batch script ends with the client script, and SLURM ends the rest: scancel would replace the exit code.
        return False

    def _secret(self) -> bytes:
        try:
            return super()._secret()
        except CredentialsError:
            # The home of the client may be missing in the cluster; the folder of the job is there.
            if self._ids is None or not inside(self._ids):
                raise

            return credentials.read_private(f"{self._ids['directory']}/secret")

    def _state(self) -> JobState:
        if self._args.attach_to:
            self._attach_gateway(self._args.attach_to)
        if self._args.min_nodes is not None and self._ids is not None and self.connection_ is None:
            self._launcher().settle(self._ids)
        return super()._state()

    def _attach_gateway(self, address: str) -> None:
        # A gateway that is no host of this job has a secret of its own.
        secret = None if os.environ.get("MONARCH_JOB_SECRET_FILE") else self._secret()
        attach_gateway(address, {"secret": secret}, self._allocation(), self._args.join_timeout)

    def _explains_loss(self) -> Callable[[], JobError | None]:
        allocation = self._allocation()
        launcher = allocation.launcher
        return EndWatch(allocation, lambda: isinstance(launcher, SlurmLauncher) and launcher.ending()[0] == COMPLETING)

    def _where(self) -> str:
        return f"SLURM job {self._ids['job_id']}" if self._ids else "nothing was submitted"

    def _logs(self) -> list[LogFile]:
        if self._ids is None:
            return []
        paths = self._launcher().log_paths(self._ids)
        found = [LogFile("", 0, "system", paths[None])]
        for mesh, ranks in self._ids["places"].items():
            found += [LogFile(mesh, index, "out", paths[rank]) for index, rank in enumerate(ranks)]
        return found
