"""SlurmLauncher: submits the script, asks how it is doing, has workers started again, cancels.

`ids` of an allocation: `job_id` and `cluster` as sbatch printed them, `directory` (its folder), `submitted` (Unix time), `places` (the
ranks of the allocation that each mesh has, in order), `spares` (ranks that no mesh has).
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from monarch.job._job.launcher import HostStatus, JobStatus, Plan, Trouble
from monarch.job._machine.commands import TIMED_OUT, Commands, Forwarding, Result
from monarch.job.errors import BackendMissingError, JobEndedError, JobError, JoinTimeoutError, SubmitError
from monarch.job.slurm import output
from monarch.job.slurm.arguments import SlurmArguments
from monarch.job.slurm.batch_script import script, total
from monarch.job.slurm.directory import Contents, JobDirectory, Worker
from monarch.job.slurm.output import expand
from monarch.job.slurm.troubles import troubles

SUBMIT_TIMEOUT_S = 60.0  # sbatch waits that long for a controller that does not answer
CANCEL_TIMEOUT_S = 5.0
COMPLETING_S = 0.5
SETTLE_PAUSE_S = 0.5

# srun's text if cpus are not bound anyway.
_NO_BINDING = "lacks support for cpu binding"
_JOB_ID = re.compile(r"(\d+)(?:;([\w.-]+))?")


class SlurmLauncher:
    """A `Launcher`; `title` is what the job is called in texts, `socket` names the one of ssh where there is a login node.

    `secret` is asked for when workers are started again.
    """

    kind = "slurm"

    def __init__(
        self,
        arguments: SlurmArguments,
        *,
        title: str,
        secret: Callable[[], bytes],
        client_script: str | None = None,
        socket: str = "new",
    ) -> None:
        self._secret = secret
        self._arguments = arguments
        self._client_script = client_script
        self.title = title
        self.commands = Commands(title, arguments.via_ssh, socket)
        # The job in the last answer of the scheduler.
        self._seen = output.JobRecord("")

    def plan(self) -> Plan:
        return Plan(self.kind, script(self._arguments, self._base(), self._client_script))

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        base = self._base()
        try:
            JobDirectory(base, self.commands).make(base, *filter(None, [self._arguments.log_dir]))
        except OSError as error:
            raise SubmitError("its folder cannot be made", title=self.title, cause=str(error), hint="see job_dir and log_dir") from None
        mark = f"monarch:{uuid.uuid4()}"
        argv = ["sbatch", "--parsable"]
        # The comment by which a job is found again if sbatch did not print its number.
        if not any(option.startswith("--comment") for option in self._options()):
            argv.append(f"--comment={mark}")
        ids: dict[str, Any] = {}
        try:
            result = self.commands.run(*argv, stdin=plan.text, timeout=SUBMIT_TIMEOUT_S)
            found = _JOB_ID.fullmatch(result.out.strip())
            if result.code or found is None:
                raise self._refused(result)
            ids = self._new_ids(found[1], found[2], base)
            self._directory(ids).write("secret", secret)
        except BaseException as error:
            self._take_back(ids, mark, error)
            if isinstance(error, OSError) and not isinstance(error, JobError):
                raise SubmitError("its secret cannot be written", title=self.title, cause=str(error), hint="see job_dir") from None
            raise
        return ids

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        record = self.record(ids)
        if record is None:
            return JobStatus("unknown", "SLURM does not answer", self._hosts(ids, [], {}))
        self._seen = record
        if record.phase == "ended":
            return JobStatus("ended", self.ended_text(ids, record), [])
        words = f"{record.state}: {record.reason}" if record.reason else record.state
        if record.phase != "running":
            self._check_start(ids, record)
            return JobStatus(record.phase, words, self._hosts(ids, [], {}))
        found = self._read(ids)
        nodes = found.nodes or hostnames(self.commands, record.nodes)
        return JobStatus("running", words, self._hosts(ids, nodes, found.workers))

    def ending(self) -> tuple[str, str]:
        """State and reason of the job, as the last `poll` found them."""
        return self._seen.state, self._seen.reason

    def troubles(self, ids: dict[str, Any]) -> list[Trouble]:
        """What SLURM has done with the job and its nodes."""
        record = self.record(ids)
        if record is None:
            return []
        if record.phase == "pending":
            # Only this command knows how often the job was requeued.
            shown = self.commands.run("scontrol", *self._cluster(ids), "show", "job", "-o", ids["job_id"])
            record = output.from_scontrol(shown.out, ids["job_id"]) or record
        # The folder has the nodes of each rank of the last run: a job that is in the queue again has none, one that has lost a node fewer.
        held = hostnames(self.commands, record.nodes)
        nodes = self._directory(ids).read().nodes or held
        return troubles(ids["job_id"], record, ids["places"], nodes, self._nodes(nodes) if nodes else {}, held)

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        workers = self._read(ids).workers
        found = {name: [workers.get(rank, Worker()).address for rank in ranks] for name, ranks in ids["places"].items()}
        listening = [worker.address for worker in workers.values() if worker.address]
        # Each worker has read the secret before it listens. A job that is requeued needs it again, and so may a client script.
        if len(listening) >= total(self._arguments) and not self._arguments.requeue and not self._client_script:
            self._directory(ids).remove_secret()
        if self._arguments.via_ssh:
            return Forwarding(self.commands).reachable(ids, found)
        return found

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """In place where the node reported the end of its worker, else on a spare, whose worker is there already, else on a live node.

        A node that reports nothing may be gone: SLURM takes its time to notice, and would block a start on that node. Where the
        node of the script is gone, nothing can be started any more, but there are the spares.
        """
        record = self.record(ids)
        if record is None or record.phase != "running":
            return []
        # Restarted workers read the secret.
        self._directory(ids).write("secret", self._secret())
        nodes, workers, _ = self._read(ids)
        alive = self._alive(nodes)
        started: list[tuple[str, int]] = []
        for mesh, index in lost:
            rank: int = ids["places"][mesh][index]
            kept: list[int] = ids["spares"]
            spares = [spare for spare in kept if workers.get(spare, Worker()).address and nodes[spare] in alive]
            there = rank < len(nodes) and nodes[rank] in alive and nodes[0] in alive
            if there and (workers.get(rank, Worker()).exit_code is not None or not spares):
                self._directory(ids).request(rank, nodes[rank])
            elif spares:
                ids["places"][mesh][index] = spares[0]
                ids["spares"].remove(spares[0])
            else:
                continue
            started.append((mesh, index))
        return started

    def cancel(self, ids: dict[str, Any]) -> None:
        if not ids or inside(ids):
            return  # the allocation ends with the client script, and has its exit code
        result = self.commands.run("scancel", *self._cluster(ids), ids["job_id"])
        if result.code and not output.is_unknown_job(result.words):
            raise JobError(
                f"cannot be cancelled: {result.command} ended with exit code {result.code}", title=self.title, cause=result.words
            )
        # Processes that still run there could write into the folder during its removal. A node that is gone never completes.
        start = time.monotonic()
        while (record := self.record(ids)) is not None and record.phase != "ended":
            if time.monotonic() - start > (COMPLETING_S if record.state == output.COMPLETING else CANCEL_TIMEOUT_S):
                break
            time.sleep(0.1)
        self._directory(ids).remove()
        self.commands.close()

    def record(self, ids: dict[str, Any]) -> output.JobRecord | None:
        """The job as the scheduler has it now; None while it does not answer. A job that no command knows any more has ended."""
        job_id, cluster = ids["job_id"], self._cluster(ids)
        result = self.commands.run("squeue", *cluster, "-h", "-t", "all", "-j", job_id, "-o", output.SQUEUE_FORMAT)
        found = output.from_squeue(result.out, job_id) if result.code == 0 else None
        if found is not None and found.phase != "ended":
            return found
        if found is None and result.code and not output.is_unknown_job(result.words):
            return None
        shown = self.commands.run("scontrol", *cluster, "show", "job", "-o", job_id)
        found = output.from_scontrol(shown.out, job_id) or found or self._from_accounting(ids)
        return found or output.JobRecord("COMPLETED", "SLURM knows nothing of it any more")

    def ended_text(self, ids: dict[str, Any], record: output.JobRecord) -> str:
        """State, reason, exit code, time, and the end of what the job has printed."""
        words = [f"{record.state} ({record.reason})" if record.reason else record.state]
        if record.exit_code:
            words.append(f"exit code {_exit_code(record.exit_code)}")
        if record.ended_at:
            words.append(f"at {record.ended_at}")
        path = f"{self._arguments.log_dir or os.path.dirname(ids['directory'])}/monarch-{ids['job_id']}.out"
        lines = self._directory(ids).tail(path).splitlines()
        tail = "\n".join(line for line in lines if not line.endswith(_NO_BINDING))
        return ", ".join(words) + (f"\n{path}:\n{tail}" if tail else f"\n{path} is empty or missing")

    def settle(self, ids: dict[str, Any]) -> None:
        """Waits until the job runs and takes the places away that there are no nodes for; of spares first, as they have the last ranks."""
        while True:
            status = self.poll(ids)
            if status.phase == "ended":
                state, reason = self.ending()
                line, _, rest = status.detail.partition("\n")
                raise JobEndedError(f"ended: {line}", title=self.title, cause=rest, state=state, reason=reason)
            count = len(self._read(ids).nodes) if status.phase == "running" else 0
            if count:
                break
            time.sleep(SETTLE_PAUSE_S)
        places: dict[str, list[int]] = ids["places"]
        for name, ranks in places.items():
            places[name] = [rank for rank in ranks if rank < count]
        ids["spares"] = [rank for rank in ids["spares"] if rank < count]

    def write(self, ids: dict[str, Any], name: str, content: bytes) -> None:
        """Puts a file for the scripts inside the allocation into its folder."""
        try:
            self._directory(ids).write(name, content)
        except OSError as error:
            raise SubmitError(f"its {name} cannot be written", title=self.title, cause=str(error), hint="see job_dir") from None

    def log_paths(self, ids: dict[str, Any]) -> dict[int | None, str]:
        """Where the workers of each rank print; under None, where the script of the job does."""
        base = f"{self._arguments.log_dir or os.path.dirname(ids['directory'])}/monarch-{ids['job_id']}"
        ranks = [rank for places in ids["places"].values() for rank in places]
        return {None: f"{base}.out", **{rank: f"{base}.{rank}.out" for rank in ranks}}

    def _options(self) -> list[str]:
        return [*self._arguments.slurm_args, *(option for options in (self._arguments.mesh_args or {}).values() for option in options)]

    def _base(self) -> str:
        """The folder for jobs: `job_dir`, else one in the working directory, as sbatch puts its output there."""
        wanted = self._arguments.job_dir or ".monarch/slurm"
        return wanted if self._arguments.via_ssh and wanted.startswith("/") else os.path.abspath(os.path.expanduser(wanted))

    def _read(self, ids: dict[str, Any]) -> Contents:
        """The records of the present run in the folder: after a requeue, what the one before has written there does not count."""
        found = self._directory(ids).read()
        if self._arguments.requeue and found.restarts is not None:
            shown = self.commands.run("scontrol", *self._cluster(ids), "show", "job", "-o", ids["job_id"])
            record = output.from_scontrol(shown.out, ids["job_id"])
            if record is None or record.phase != "running" or (record.restarts or 0) != found.restarts:
                return Contents([], {}, None)
        return found

    def _directory(self, ids: dict[str, Any]) -> JobDirectory:
        return JobDirectory(ids["directory"], self.commands)

    def _cluster(self, ids: dict[str, Any]) -> list[str]:
        return ["-M", ids["cluster"]] if ids.get("cluster") else []

    def _new_ids(self, job_id: str, cluster: str | None, base: str) -> dict[str, Any]:
        places: dict[str, list[int]] = {}
        first = 0
        for name, count in self._arguments.meshes.items():
            places[name] = list(range(first, first + count))
            first += count
        spares = list(range(first, first + self._arguments.spares))
        return {
            "job_id": job_id,
            "cluster": cluster,
            "directory": f"{base}/{job_id}",
            "submitted": time.time(),
            "places": places,
            "spares": spares,
        }

    def _refused(self, result: Result) -> SubmitError:
        if result.code == TIMED_OUT:
            what = f"{result.command} did not end within {SUBMIT_TIMEOUT_S:g} s"
        elif result.code:
            what = f"{result.command} ended with exit code {result.code}"
        else:
            what = f"{result.command} printed no job id"
        return SubmitError(what, title=self.title, cause=result.words[:4000], command=result.command, exit_code=result.code)

    def _take_back(self, ids: dict[str, Any], mark: str, error: BaseException) -> None:
        """Cancels what may have been submitted. A job that it cannot find ends by itself, without a secret."""
        try:
            if not ids:
                listed = self.commands.run("squeue", "-h", "-o", output.COMMENTS_FORMAT, timeout=CANCEL_TIMEOUT_S).out
                found = output.with_comment(listed, mark)
                if found:
                    self.commands.run("scancel", *found, timeout=CANCEL_TIMEOUT_S)
                return
            self.commands.run("scancel", *self._cluster(ids), ids["job_id"], timeout=CANCEL_TIMEOUT_S)
            self._directory(ids).remove()
        except Exception as second:
            error.add_note(f"SLURM job {ids.get('job_id', f'with comment {mark}')} may be left: {second}")

    def _check_start(self, ids: dict[str, Any], record: output.JobRecord) -> None:
        limit = self._arguments.job_start_timeout
        if limit is None or time.time() - ids["submitted"] < limit:
            return
        self.cancel(ids)
        raise JoinTimeoutError(
            f"did not start within {limit} s (job_start_timeout) and was cancelled: {record.state}, {record.reason or 'no reason given'}",
            title=self.title,
            joined=0,
            total=sum(self._arguments.meshes.values()),
        )

    def _from_accounting(self, ids: dict[str, Any]) -> output.JobRecord | None:
        argv = ("sacct", *self._cluster(ids), "-X", "-P", "-n", "-j", ids["job_id"], "-o", output.SACCT_FORMAT)
        try:
            return output.from_sacct(self.commands.run(*argv).out, ids["job_id"])
        except BackendMissingError:
            return None

    def _hosts(self, ids: dict[str, Any], nodes: list[str], workers: dict[int, Worker]) -> list[HostStatus]:
        alive = self._alive(nodes) if nodes else set[str]()
        hosts: list[HostStatus] = []
        places: dict[str, list[int]] = ids["places"]
        for mesh, ranks in places.items():
            for index, rank in enumerate(ranks):
                worker = workers.get(rank, Worker())
                name = nodes[rank] if rank < len(nodes) else ""
                detail = ""
                if worker.exit_code is not None:
                    detail = f"its worker ended with exit code {worker.exit_code}"
                elif name and name not in alive:
                    detail = "SLURM says that the node does not answer"
                elif worker.failed is not None:
                    detail = f"srun could not run its worker on the node: exit code {worker.failed}"
                hosts.append(HostStatus(mesh, index, name, "lost" if detail else "waiting", worker.address, detail))
        return hosts

    def _alive(self, nodes: list[str]) -> set[str]:
        """The nodes that answer the controller, as far as it knows."""
        return {name for name, node in self._nodes(nodes).items() if node.is_alive}

    def _nodes(self, nodes: list[str]) -> dict[str, output.NodeState]:
        return output.node_states(self.commands.run("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", output.NODES_FORMAT).out)


def inside(ids: dict[str, Any]) -> bool:
    """Is this process the client script of that allocation, or a child of it?"""
    return os.environ.get("MONARCH_BATCH_JOB") == "1" and os.environ.get("SLURM_JOB_ID") == ids["job_id"]


def hostnames(commands: Commands, text: str) -> list[str]:
    """The names in a host list, by SLURM itself, or by our own expansion where it does not answer."""
    if not text:
        return []
    result = commands.run("scontrol", "show", "hostnames", text)
    return expand(text) if result.code else result.out.split()


def _exit_code(text: str) -> str:
    code, _, number = text.partition(":")
    return code if number in ("", "0") else f"{code} (signal {number})"
