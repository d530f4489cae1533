"""Launches of torchrun on hosts that are reserved once: `serve` gets the hosts, `run_spmd` runs the launch on them, again and again.

    job = serve(["torchrun", "--nproc-per-node=4", "--standalone", "train.py"])
    job.run_spmd()
    # Later, in another process:
    job_load(".monarch/job_state.json").run_spmd()

The hosts are those of another job, by its backend: `SPMDJob` has it inside, and what is asked of the one is done by the other.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch.job import job_load as job_load
from monarch.job._files.state_file import DEFAULT_JOB_PATH
from monarch.job._job import hooks, saved
from monarch.job._job.healer import first_mesh
from monarch.job._job.job_state import JobState
from monarch.job._job.launcher import HealReport, JobStatus, LogFile, Plan
from monarch.job._job.trait import JobTrait, is_alive
from monarch.job._machine.notice import notice
from monarch.job.errors import JobEndedError, JobError
from monarch.job.store import StoreJob as StoreJob

if TYPE_CHECKING:
    from torchx.specs import AppDef  # pyright: ignore[reportMissingTypeStubs]

    from monarch.actor import ProcId
    from monarch.spmd import LaunchSpec, RestartPolicy

__all__ = ["SPMDJob", "StoreJob", "job_load", "serve"]

# The mesh of the hosts of a command list.
WORKERS = "workers"
# The arguments of `serve` for a command list whose ranks run in the directory of the client, which the hosts have as well.
_LOCAL = ("local_cwd", "local", "process")
_SHARED = (*_LOCAL, "slurm")
SCHEDULERS = (*_LOCAL, "kubernetes", "skypilot", "slurm", "ssh")


class SPMDJob(JobTrait):
    """Hosts with a launch. `serve` makes one; the arguments are those by which it is found again.

    Args:
        handle: `<scheduler>://<name>`, for people.
        scheduler: the name that `serve` was given.
        workspace: the directory of the ranks on the hosts; None: that of the workers.
        original_roles: one dict with `entrypoint` and `args`, the command.
    """

    __module__ = "monarch.job.spmd"
    kind = "spmd"

    def __init__(
        self,
        handle: str,
        scheduler: str,
        workspace: str | None = None,
        original_roles: list[dict[str, Any]] | None = None,
        service_proc_ids: list[ProcId] | None = None,
    ) -> None:
        super().__init__()
        self.handle, self.scheduler, self.workspace = handle, scheduler, workspace
        self.original_roles = list(original_roles or [])
        self.service_proc_ids_ = service_proc_ids
        self.hosts_: JobTrait | None = None

    def run_spmd(self, *, policy: RestartPolicy | None = None) -> None:
        """Runs the launch on the hosts and waits for its end; may be called any number of times, also from other processes.

        `policy` counts restarts; without it those of `--max-restarts` count. `SPMDFailure` for a rank that fails, `JobEndedError` where the
        hosts are gone. Ctrl-C ends the ranks and keeps the hosts.
        """
        from monarch.spmd.launch import launch_of
        from monarch.spmd.spmd_run import begin, wait

        command, env = self._command()
        # If the hosts are gone, `state` would reserve others: only `serve` does that for a launch.
        self._check_hosts()
        hosts = first_mesh(self.state(cached_path=None))
        wait(begin(hosts, command, launch_of(command), policy=policy, env=env, workdir=self.workspace))

    def _check_hosts(self) -> None:
        status = self.status()
        if status.phase in ("none", "ended"):
            words = "ended" if status.phase == "ended" else "is not submitted"
            hint = "serve(...) reserves hosts again"
            raise JobEndedError(words, title=self._title, cause=status.detail, state=status.phase, reason=status.detail, hint=hint)

    def _command(self) -> tuple[list[str], dict[str, str]]:
        if not self.original_roles:
            raise JobError("has no command", title=self._title, hint="serve(...) makes a job with one")
        role = self.original_roles[0]
        return [role["entrypoint"], *role.get("args", ())], dict(role.get("env", {}))

    @property
    def _hosts(self) -> JobTrait:
        if self.hosts_ is None:
            raise JobError("has no hosts", title=self._title, hint="serve(...) makes a job that has some")
        return self.hosts_

    # The hooks, by the job inside.

    def plan(self) -> Plan:
        found = self._hosts.plan()
        command, _ = self._command()
        return Plan(self.kind, f"launch: {' '.join(command)}\n{found.text}", found.files, found.redacted)

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, SPMDJob) and spec.plan() == self.plan()

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise JobError("runs no client script: it has a launch to run", title=self._title)
        self._hosts.apply()

    def _state(self) -> JobState:
        return self._hosts.state(cached_path=None)

    def _kill(self) -> None:
        if self.hosts_ is not None:
            self.hosts_.kill()

    def _poll(self) -> JobStatus:
        return self._hosts.status()

    def _heal(self, timeout: float | None) -> HealReport:
        return self._hosts.heal(timeout=timeout)

    def _sizes(self) -> dict[str, int]:
        return self._hosts._sizes()

    def _logs(self) -> list[LogFile]:
        return self._hosts._logs()

    def _fetch_logs(self) -> list[LogFile]:
        return self._hosts._fetch_logs()

    def _where(self) -> str:
        return self._hosts._where()

    def _dump(self) -> dict[str, Any]:
        names = ("handle", "scheduler", "workspace", "original_roles")
        hosts = None if self.hosts_ is None else self.hosts_.dumps().decode()
        return {**{name: vars(self)[name] for name in names}, "hosts": hosts}

    def _load(self, saved: dict[str, Any]) -> None:
        hosts = saved["hosts"]
        self.__init__(saved["handle"], saved["scheduler"], saved["workspace"], saved["original_roles"])
        self.hosts_ = None if hosts is None else _decoded(hosts)

    def _take_over(self, other: JobTrait) -> None:
        assert isinstance(other, SPMDJob)
        super()._take_over(other)
        if self.hosts_ is not None and other.hosts_ is not None:
            self.hosts_._take_over(other.hosts_)


def serve(appdef: AppDef | list[str], scheduler: str = "local_cwd", scheduler_cfg: Mapping[str, Any] | None = None) -> SPMDJob:
    """Starts workers for a launch and saves the job, so that `run_spmd` of it, or of `job_load(".monarch/job_state.json")`, runs it.

    A command list needs `--nnodes` for more than one host; `scheduler_cfg` has the arguments of the job of that scheduler. An `AppDef` goes
    to a TorchX scheduler, and has one role. A job that the directory has already is killed first, which a line on stderr states.
    `ValueError` names a scheduler that is not there, `LaunchArgumentError` an option of torchrun that is wrong.
    """
    config = dict(scheduler_cfg or {})
    if isinstance(appdef, (list, tuple)):
        job = _of_command(appdef, scheduler, config)
    elif isinstance(appdef, str):
        raise TypeError(f"serve({appdef!r}): expected a list of words, like ['torchrun', 'train.py'], or a torchx.specs.AppDef")
    else:
        job = _of_application(appdef, scheduler, config)
    _end_cached()
    job.apply()
    job.handle = f"{scheduler}://{job.apply_id}"
    saved.write(DEFAULT_JOB_PATH, job)
    return job


def _of_command(command: Sequence[str], scheduler: str, config: dict[str, Any]) -> SPMDJob:
    from monarch.spmd.launch import launch_of

    spec = launch_of(command)
    if scheduler not in SCHEDULERS:
        raise ValueError(f"scheduler={scheduler!r}: a command list goes to {', '.join(SCHEDULERS)}; other schedulers get a TorchX AppDef")
    hosts, count = _on_machines(spec, config) if scheduler == "ssh" else (_hosts_of(spec, scheduler, config), spec.max_hosts)
    workspace = os.getcwd() if scheduler in _SHARED else None
    role = {"name": WORKERS, "entrypoint": command[0], "args": list(command[1:]), "num_replicas": count}
    return _made(hosts, scheduler, workspace, role)


def _of_application(application: AppDef, scheduler: str, config: dict[str, Any]) -> SPMDJob:
    from monarch.job.torchx import TorchXJob

    hosts = TorchXJob(application, scheduler, config)
    roles = application.roles
    if len(roles) != 1:
        names = ", ".join(role.name for role in roles)
        raise ValueError(f"the application '{application.name}' has {len(roles)} roles ({names}): a launch has one")
    role = roles[0]
    workspace = getattr(role, "workspace", None)
    projects = list(getattr(workspace, "projects", None) or ())
    found = {"name": role.name, "entrypoint": role.entrypoint, "args": list(role.args), "num_replicas": role.num_replicas}
    return _made(hosts, scheduler, projects[0] if projects else os.getcwd(), {**found, "env": dict(role.env)})


def _made(hosts: JobTrait, scheduler: str, workspace: str | None, role: dict[str, Any]) -> SPMDJob:
    job = SPMDJob(f"{scheduler}://", scheduler, workspace, [role])
    job.hosts_ = hosts
    return job


def _hosts_of(spec: LaunchSpec, scheduler: str, config: dict[str, Any]) -> JobTrait:
    meshes = {WORKERS: spec.max_hosts}
    if scheduler in _LOCAL:
        from monarch.job.process import ProcessJob

        return ProcessJob(meshes, **_known(ProcessJob, config))
    if scheduler == "slurm":
        from monarch.job.slurm import SlurmJob

        return SlurmJob(meshes, **_known(SlurmJob, config))
    if scheduler == "skypilot":
        from monarch.job.skypilot import SkyPilotJob

        return SkyPilotJob(meshes, **_known(SkyPilotJob, config))
    from monarch.job.kubernetes import KubernetesJob

    own = {name: config.pop(name) for name in inspect.signature(KubernetesJob.__init__).parameters if name in config}
    if "namespace" not in own:
        raise ValueError("scheduler_cfg: kubernetes needs a namespace")
    job = KubernetesJob(**own)
    job.add_mesh(WORKERS, spec.max_hosts, **_known(KubernetesJob.add_mesh, config))
    return job


def _on_machines(spec: LaunchSpec, config: dict[str, Any]) -> tuple[JobTrait, int]:
    """The job and the number of its hosts: the first ones of `hosts`, as many as the launch names, or all of them."""
    from monarch.job.ssh import SSHJob

    given: Any = config.pop("hosts", None)
    if not isinstance(given, (list, tuple)) or not given:
        raise ValueError("scheduler_cfg: ssh needs 'hosts', a list of names as ssh knows them")
    machines: list[str] = [*given]
    if spec.has_hosts:
        if len(machines) < spec.min_hosts:
            raise ValueError(f"scheduler_cfg['hosts']: {len(machines)} of at least {spec.min_hosts} that the launch needs")
        machines = machines[: spec.max_hosts]
    job = SSHJob(**_known(SSHJob, config))
    job.add_mesh(WORKERS, machines)
    return job, len(machines)


def _known(made: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The options; `ValueError` for one that there is not."""
    names = [name for name in inspect.signature(made).parameters if name not in ("self", "meshes", "name", "num_replicas")]
    for name in config:
        if name not in names:
            raise ValueError(f"scheduler_cfg[{name!r}]: no such option, there is: {', '.join(names)}")
    return config


def _end_cached() -> None:
    """Kills the job that the directory has."""
    found = saved.load_if_there(DEFAULT_JOB_PATH, JobTrait)
    if found is None:
        return
    if is_alive(found):
        notice(f"monarch: {hooks.title(found)} of {DEFAULT_JOB_PATH} is killed: another one takes its place")
    found.kill()


def _decoded(text: str) -> JobTrait:
    found = saved.decode(text.encode(), JobTrait)
    found.__core__.loaded = True
    return found
