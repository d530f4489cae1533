"""KubernetesJob: its arguments, and how it differs from other jobs whose machines come from a launcher."""

from __future__ import annotations

import base64
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from monarch import actor
from monarch.config import get_global_config
from monarch.job._files import credentials
from monarch.job._job.allocation import Allocation
from monarch.job._job.gateway import attach_gateway
from monarch.job._job.host_end import leave, stop_procs
from monarch.job._job.launcher import Host, JobStatus, LogFile
from monarch.job._job.launcher_job import LauncherJob
from monarch.job._job.trait import current, keeper_of
from monarch.job._job.watch import ANSWER_S, EndWatch, answer_within, until_joined
from monarch.job._machine.notice import notice
from monarch.job.errors import CredentialsError, JobError, JoinTimeoutError, SubmitError
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.arguments import ImageSpec, checked, checked_mesh
from monarch.job.kubernetes.launcher import KubernetesLauncher
from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.pods.output import copy_logs
from monarch.job.kubernetes.pods.pod_view import place_of
from monarch.job.kubernetes.route import has_route

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job._job.job_state import JobState
    from monarch.job._job.trait import JobTrait
    from monarch.job.kubernetes.access.forward import Forward

# The variable with the secret of workers that were started by other means.
_SECRET_VARIABLE = "MONARCH_JOB_SECRET_FILE"
_GIVEN = {"given": True}


# Seconds between two lists of pods that start. A list takes the API server milliseconds, and longer with the number of pods.
_PAUSE_S, _PAUSE_OF_HOST_S = 0.1, 0.001
# Seconds for the thread that waits for pods to notice that the job is killed, which it does between two lists.
WATCH_END_S = 5.0
# The keeper forwards a port to a pod, through which all hosts are reached.
FORWARD = "forward"


class GatewayPod(NamedTuple):
    """A worker that listens, through which others can be reached: `place` is IP address and port."""

    mesh: str
    pod: str
    place: tuple[str, int]


class KubernetesJob(LauncherJob):
    """Pods of a namespace as hosts: pods that are there already, or pods that the job makes; `add_mesh` decides.

    Args:
        namespace: where the pods are.
        timeout: seconds from `apply` until all pods have to be ready; then the job is given up. Without it, it waits.
        kubeconfig: how the API server is reached; in a pod by its service account, elsewhere by the default kubeconfig.
        attach_to: address of a gateway that reaches the pods, such as a Service or a forwarded port of the first one.
        provisioner: "native" makes Jobs or StatefulSets; "monarchmesh" makes MonarchMesh objects for an operator.
        workload: what "native" makes: "job" (a worker that ends frees its node), "statefulset", or "jobset" (all meshes are one gang).
        join_secret: the Secret with the secret of the workers, under the key `secret`; by default the job makes one of its own.
        network_policy: only pods of the job and its clients reach the workers, where the cluster's network enforces policies.
        idle_timeout: seconds without any client after which workers end; `state()` makes them again.
        insecure: no encryption and no authentication: for pods of torchmonarch 0.7.

    Raises `TypeError` or `ValueError` for arguments that cannot be right; nothing is requested before `apply` or `state`.

    ```python
    from monarch.job.kubernetes import ImageSpec, KubernetesJob

    job = KubernetesJob("research")
    job.add_mesh("trainers", 4, image_spec=ImageSpec("registry.example.com/monarch:1", {"nvidia.com/gpu": 8}))
    assert "kind: Job" in job.plan().text  # job.state() makes the pods
    ```
    """

    __module__ = "monarch.job.kubernetes"
    kind = "kubernetes"

    # The last configuration that exists in this process only: jobs from a state file need it again.
    _given: ClassVar[KubeConfig | None] = None

    kubeconfig_: KubeConfig | None = None
    cluster_: Cluster | None = None
    # A forward of this process, its worker, and its local port.
    forward_: Forward | None = None
    forwarded_: tuple[GatewayPod, int] | None = None
    # No pod listens yet, and there is no other route to them: a thread waits for the first.
    is_late_ = False

    def __init__(
        self,
        namespace: str,
        timeout: int | None = None,
        kubeconfig: KubeConfig | None = None,
        attach_to: str | None = None,
        *,
        provisioner: Literal["native", "monarchmesh"] = "native",
        workload: Literal["job", "statefulset", "jobset"] = "job",
        join_secret: str | None = None,
        network_policy: bool = True,
        idle_timeout: float | None = None,
        insecure: bool = False,
    ) -> None:
        super().__init__()
        given: object = kubeconfig
        if kubeconfig is not None and not isinstance(given, KubeConfig):
            raise TypeError(f"KubernetesJob: kubeconfig is a KubeConfig, not {kubeconfig!r}")
        saved = None if kubeconfig is None else kubeconfig.saved()
        self._args = checked(
            {
                "namespace": namespace,
                "timeout": timeout,
                "kubeconfig": saved,
                "attach_to": attach_to,
                "provisioner": provisioner,
                "workload": workload,
                "join_secret": join_secret,
                "network_policy": network_policy,
                "idle_timeout": None if idle_timeout is None else float(idle_timeout),
                "insecure": insecure,
            }
        )
        self.kubeconfig_ = kubeconfig
        if saved == _GIVEN:
            KubernetesJob._given = kubeconfig

    def add_mesh(
        self,
        name: str,
        num_replicas: int,
        label_selector: str | None = None,
        pod_rank_label: str = names.POD_INDEX_LABEL,
        image_spec: ImageSpec | None = None,
        port: int = 26600,
        pod_template: Any = None,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> None:
        """One more mesh of `num_replicas` pods. Before the job is applied.

        With `image_spec` or `pod_template` the job makes the pods; `labels` and `annotations` go on them and on their workload. Else the
        pods are there already: `label_selector` finds them (by default the labels of a worker of a mesh of this name), and their rank is
        in the label or the annotation `pod_rank_label`, else it is the ordinal at the end of their names. Workers listen at `port`.
        A `pod_template` is a dict or a `V1PodTemplateSpec` whose container `worker` has `monarch` on its PATH, or a command of its own.
        `ValueError` for a mesh of that name, and for what cannot be right.
        """
        if self.active:
            raise RuntimeError(f"{self._title} is submitted: what it asks for cannot be changed")
        mesh = checked_mesh(
            {
                "name": name,
                "num_replicas": num_replicas,
                "label_selector": label_selector,
                "pod_rank_label": pod_rank_label,
                "image_spec": image_spec,
                "port": port,
                "pod_template": pod_template,
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
            }
        )
        if name in self._args.meshes:
            raise ValueError(f"there is a mesh '{name}' already")
        dumped = self._args.model_dump()
        self._args = checked({**dumped, "meshes": {**dumped["meshes"], name: mesh.model_dump()}})

    def can_run(self, spec: JobTrait) -> bool:
        if not isinstance(spec, KubernetesJob) or not super().can_run(spec):
            return False
        ours, theirs = self._args, spec._args
        server = (self._ids or {}).get("server")
        if server is not None and spec._cluster().connection.server != server:
            return False
        return (ours.namespace, ours.insecure, ours.join_secret) == (theirs.namespace, theirs.insecure, theirs.join_secret)

    def kill(self) -> None:
        holder = current(self)
        if isinstance(holder, KubernetesJob):
            # A kubeconfig of another cluster, or a missing one, is refused before the keeper and the credentials are removed.
            holder._check_cluster()
        super().kill()

    def _check_cluster(self) -> None:
        if self._ids is not None:
            self._cluster()

    def _cluster(self) -> Cluster:
        if self.cluster_ is None:
            kubeconfig = self._kubeconfig()
            connection = kubeconfig.load()
            kubeconfig.check_server(connection, (self._ids or {}).get("server"), self._title)
            self.cluster_ = Cluster(connection, self._args.namespace, self._title)
            weakref.finalize(self, connection.close)
        self.cluster_.title = self._title
        return self.cluster_

    def _kubeconfig(self) -> KubeConfig:
        if self.kubeconfig_ is None:
            given = KubernetesJob._given
            is_given = self._args.kubeconfig == _GIVEN and given is not None
            self.kubeconfig_ = given if is_given else KubeConfig.restored(self._args.kubeconfig)
        assert self.kubeconfig_ is not None
        return self.kubeconfig_

    def _launcher(self) -> KubernetesLauncher:
        is_in_cluster = not self._kubeconfig().out_of_cluster
        return KubernetesLauncher(
            self._args,
            cluster=self._cluster,
            apply_id=self.apply_id,
            title=self._title,
            is_in_cluster=is_in_cluster,
            directory=None if self.apply_id is None else self._directory,
        )

    def _sizes(self) -> dict[str, int]:
        return {name: mesh.num_replicas for name, mesh in self._args.meshes.items()}

    def _arguments(self) -> dict[str, Any]:
        return self._args.model_dump(mode="json")

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        self._args = checked(saved)

    def _create(self, client_script: str | None) -> None:
        if not self._args.meshes:
            raise ValueError("KubernetesJob without a mesh: nothing to submit")
        has_secret = (
            self._args.insecure
            or self._args.join_secret is not None
            or os.environ.get(_SECRET_VARIABLE)
            or get_global_config()["trust_all"]
        )
        attached = next((mesh.name for mesh in self._args.meshes.values() if not mesh.provisioned), None)
        if attached is not None and not has_secret:
            raise SubmitError(
                f"nothing says by which secret the pods of mesh '{attached}' are joined",
                title=self._title,
                hint=f"join_secret= names their Secret, {_SECRET_VARIABLE} a file; insecure=True, or MONARCH_TRUST_ALL=1 for a program "
                "that stays as it is, is for pods without encryption",
            )
        super()._create(client_script)
        assert self._ids is not None
        self._ids["server"] = self._cluster().connection.server

    def _starts_workers(self, mesh: str) -> bool:
        return self._args.meshes[mesh].provisioned

    def _trust(self, mesh: str) -> dict[str, Any]:
        if self._args.insecure:
            return {"insecure": True}
        if self._args.join_secret is not None:
            return {"secret": self._join_secret(self._args.join_secret)}
        return super()._trust(mesh) if self._args.meshes[mesh].provisioned else {}

    def _join_secret(self, name: str) -> bytes:
        """The secret of workers that have it from a Secret of the user."""
        place = f"Secret {self._args.namespace}/{name}"
        found = self._cluster().get("v1/Secret", name)
        if found is None:
            raise CredentialsError("is missing", path=place, hint=f"kubectl -n {self._args.namespace} get secrets")
        data: dict[str, str] = found.get("data") or {}
        if names.SECRET_KEY not in data:
            raise CredentialsError(f"has no key '{names.SECRET_KEY}'", path=place, cause=f"its keys: {', '.join(data) or 'none'}")
        secret = base64.b64decode(data[names.SECRET_KEY])
        # The form in which the workers read the secret from their file.
        return secret if len(secret) == credentials.SECRET_BYTES else secret.strip()

    def _state(self) -> JobState:
        if self._ids is not None:
            launcher = self._launcher()
            if launcher.lost(self._ids):
                # One process at a time, so that no rank is started twice.
                with credentials.lock(self.apply_id):
                    self._replaced(launcher.renew(self._ids))
            if self.connection_ is None or self.is_stale_:
                self.is_late_ = self._needs_way() and not any(
                    address for found in launcher.addresses(self._ids).values() for address in found
                )
                if not self.is_late_:
                    self._reach()
        return super()._state()

    def _needs_way(self) -> bool:
        return self._args.attach_to is not None or self._kubeconfig().out_of_cluster

    def _late_way(self) -> Callable[[], None] | None:
        return self._reach_late if self.is_late_ else None

    def _reach_late(self) -> None:
        """In the thread that waits for the pods. Other processes of the job go through the same gateway."""
        self._reach()
        path = (self.__core__.inside or self).__core__.path
        if path is not None and os.path.exists(path):
            with credentials.lock(self.apply_id):
                self._save()

    def _reach(self) -> None:
        """Makes a gateway the way to the pods where they are not reached directly: the given one, or a port forwarded by the keeper.

        A gateway comes before any host, so this waits for it, or for the first pod; in the cluster it does nothing.
        """
        if self._args.attach_to is not None:
            mesh = next(iter(self._args.meshes))
            attach_gateway(self._args.attach_to, self._trust(mesh), self._waited_for(), self._join_timeout())
        elif self._kubeconfig().out_of_cluster:
            self._through_pod(self._submitted())

    def _waited_for(self) -> Allocation:
        """The allocation whose pods a thread waits for, which knows when the job is killed; else one for a look at it."""
        return self.awaited_ if self.is_late_ and self.awaited_ is not None else self._allocation()

    def _through_pod(self, ids: dict[str, Any]) -> None:
        """Makes a pod the gateway, unless pods are reached directly: the one that is it already, else the first that listens."""
        from monarch.extension.mesh import join_gateway

        found, *others = self._candidates()
        if (before := next((one for one in others if one.pod == ids.get("gateway")), None)) is not None:
            # All connections go through it.
            found, others = before, [found, *(one for one in others if one is not before)]
        if ids["route"] != FORWARD and has_route(*found.place):
            return
        ids["route"] = FORWARD
        while True:
            try:
                join_gateway(f"tcp://127.0.0.1:{self._forward(found)}", **self._trust(found.mesh))
            except actor.AuthenticationError:
                raise
            except (actor.AttachError, JobError) as error:
                if not others:
                    raise
                notice(
                    f"monarch: {self._title}: pod {found.pod} is no gateway, {others[0].pod} is next: {str(error).partition(chr(10))[0]}"
                )
                found = others.pop(0)
            else:
                ids["gateway"] = found.pod
                return

    def _forward(self, worker: GatewayPod) -> int:
        """The local port that is forwarded to this worker: by the keeper, or by this process where no other one has the credentials."""
        if self._args.kubeconfig != _GIVEN:
            from monarch.job.kubernetes.access.kept_forward import forwarded

            server = self._cluster().connection.server
            return forwarded(keeper_of(self), self._args.kubeconfig, server, self._args.namespace, worker.pod, worker.place[1], self._title)
        if self.forwarded_ is None or self.forwarded_[0] != worker:
            from monarch.job.kubernetes.access.forward import Forward

            self._close_forward()
            made = Forward(self._cluster(), worker.pod, worker.place[1])
            self.forward_, self.forwarded_ = made, (worker, made.start())
            weakref.finalize(self, made.close)
        return self.forwarded_[1]

    def _close_forward(self) -> None:
        made, self.forward_, self.forwarded_ = self.forward_, None, None
        if made is not None:
            made.close()

    def _stop_work(self) -> None:
        watch, self.watch_ = self.watch_, None
        if self.awaited_ is not None and watch is not None:
            # The thread may be about to request a forwarded port from the keeper.
            self.awaited_.stopped.set()
            watch.join(WATCH_END_S)
        if self._ids is None or self._ids["route"] != FORWARD or self._args.kubeconfig == _GIVEN:
            return
        # The keeper's forward ends with the keeper. After that, an agent ends by the deletion of its pod.
        connections = self._disconnect()
        leave(state[mesh] for state in connections for mesh in state if not self._starts_workers(mesh))
        stop_procs(state[mesh] for state in connections[-1:] for mesh in state if self._starts_workers(mesh))

    def _kill(self) -> None:
        try:
            super()._kill()
        finally:
            self._close_forward()

    def _take_over(self, other: JobTrait) -> None:
        """Another process may have found a worker again that listens where the one did that this process has attached."""
        before = self._workers()
        super()._take_over(other)
        self._replaced(host for host, worker in self._workers().items() if before.get(host) not in (None, worker))

    def _workers(self) -> dict[Host, str | None]:
        places: dict[str, list[dict[str, Any]]] = (self._ids or {}).get("places", {})
        return {Host(mesh, rank): record["worker"] for mesh, records in places.items() for rank, record in enumerate(records)}

    def _candidates(self) -> list[GatewayPod]:
        """The workers that listen, in order; waits for the first."""
        allocation = self._waited_for()
        hosts = [Host(mesh, rank) for mesh, size in self._sizes().items() for rank in range(size)]
        waiting = until_joined(allocation, hosts, self._join_timeout())
        next(waiting)
        waiting.close()
        joined = [host for host in allocation.seen.hosts if host.phase == "joined" and host.address is not None]
        return [GatewayPod(host.mesh, host.name, place_of(str(host.address))) for host in joined]

    def _poll(self) -> JobStatus:
        return self._launcher().last_words(self._submitted(), super()._poll())

    def _allocation(self) -> Allocation:
        found = super()._allocation()
        found.longest_pause = _PAUSE_S + _PAUSE_OF_HOST_S * sum(self._sizes().values())
        return found

    def _explains_loss(self) -> Callable[[], JobError | None]:
        return EndWatch(self._allocation())

    def _explains_failure(self) -> Callable[[actor.AttachError], JobError | None]:
        attached, sizes, limit = self.attached_, self._sizes(), self._args.timeout
        launcher, ids, title = self._launcher(), self._submitted(), self._title

        def explain(error: actor.AttachError) -> JobError:
            hosts = {host: error.hosts[address] for host, address in (attached or {}).items() if address in error.hosts}
            words = answer_within(ANSWER_S, lambda: launcher.pod_words(ids, list(hosts))) or {}
            reasons = {
                str(host): "\n".join(filter(None, (f"{(attached or {})[host]}: {why}", words.get(host)))) for host, why in hosts.items()
            }
            total = sum(sizes.values())
            bound = f"within {limit} s (timeout)" if limit is not None else "in time (`mesh_attach_config_timeout`)"
            return JoinTimeoutError(
                f"{total - len(error.hosts)} of {total} hosts joined {bound}",
                title=title,
                cause="\n".join(f"{host}: {why}" for host, why in reasons.items()) or str(error),
                hint="the pods that are named run no worker that this client can join: their last lines and events have the reason",
                joined=total - len(error.hosts),
                total=total,
                hosts=reasons or dict(error.hosts),
            )

        return explain

    def _join_deadline(self) -> float | None:
        if self._args.timeout is None or self._ids is None:
            return None
        left = self._ids["submitted"] + self._args.timeout - time.time()
        return time.monotonic() + left if left > 0 else None

    def _where(self) -> str:
        if not self._ids or not self._ids["anchor"]:
            return f"namespace {self._args.namespace}"
        return f"ConfigMap {self._ids['anchor']} in namespace {self._args.namespace}"

    def _fetch_logs(self) -> list[LogFile]:
        if self._ids is None or self.apply_id is None:
            return []
        return copy_logs(self._cluster(), self._launcher().printing(self._ids), os.path.join(self._directory, "logs"))
