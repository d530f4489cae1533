"""KubernetesLauncher: makes the objects of a job, looks at its pods, has lost workers replaced, removes everything.

`ids` of an allocation: `namespace`, `server` (the URL of the API server; the job adds it), `anchor` and `anchor_uid` (the ConfigMap that
owns the other objects; empty where all pods were there before), `submitted` (Unix time), `joined` (all workers have been there at the same
time), `supplements` (how many Jobs replace completed indexes), `route` ("forward" where the keeper forwards a port), `gateway` (the
pod that it leads to), `places` (by mesh and rank, the records of `pods.place`).

One look is one list of pods, out of the API server's own memory. Pods that are missing cost a second request: for their workloads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from monarch.job._job.launcher import Host, HostStatus, JobStatus, Phase, Plan, Trouble
from monarch.job.errors import JobEndedError, JoinTimeoutError, SubmitError
from monarch.job.kubernetes import workloads
from monarch.job.kubernetes.access.failures import ApiError, UnreachableError
from monarch.job.kubernetes.manifests import names, plan_text
from monarch.job.kubernetes.pods import pod_view
from monarch.job.kubernetes.pods.diagnosis import Fault, mount_fault
from monarch.job.kubernetes.pods.fault_report import fault_report, pod_report
from monarch.job.kubernetes.pods.output import Printing
from monarch.job.kubernetes.pods.place import Place, new_record
from monarch.job.kubernetes.submission import FORBIDDEN, GRACE_S, Submission, own_peer
from monarch.job.kubernetes.troubles import troubles

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster
    from monarch.job.kubernetes.arguments import KubernetesArguments
    from monarch.job.kubernetes.workloads import MeshWorkload

# Give up when a permanent fault lasts this many seconds: registries and admission recover within that time.
FAULT_S = 60.0
# Seconds: a pod whose containers start later may wait for a missing volume.
SLOW_START_S = 10.0
# Seconds for the kubelet to end a pod, or to notice one on its node: that takes it a second, and the grace of the pod.
STUCK_S = GRACE_S + 5.0
# The number of hosts whose status has the last lines of their workers.
_EXPLAINED = 8
# The most nodes that one query for troubles looks at.
_MOST_NODES = 32
# The note that all workers have joined.
_JOINED = "joined"
# Seconds after which a refusal is believed: a server that starts knows no roles at first.
REFUSED_S = 20.0
# Statuses of a server that starts, or is overloaded.
_BUSY = (0, 429, 500, 502, 503, 504)


class KubernetesLauncher:
    """A `Launcher`; `cluster` is asked for when something is to be requested, `now` is a clock in Unix time.

    In `directory`, which is there as long as the job is, it notes that all workers have been there: a state file that was written before
    that would have another process take a worker that is lost later for a start that has failed.
    """

    kind = "kubernetes"

    def __init__(
        self,
        arguments: KubernetesArguments,
        *,
        cluster: Callable[[], Cluster],
        apply_id: str | None,
        title: str,
        is_in_cluster: bool = False,
        directory: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._arguments = arguments
        self._cluster = cluster
        self._apply_id = apply_id
        self._title = title
        self._is_in_cluster = is_in_cluster
        self._note = None if directory is None else os.path.join(directory, _JOINED)
        self._now = now
        self._seen: list[Place] | None = None
        # State and reason of the end that the last query has found.
        self._end = ("", "")
        # By the uids of pods that start: the time of the last query of their events, or of the first sight of the pods, and the fault in
        # the events.
        self._starts: dict[str, tuple[float, Fault | None]] = {}
        # By the uids of pods: the time since which they wait for their node to end or start them.
        self._stuck: dict[str, float] = {}
        # Whether the server has answered once, and the time since which it refuses.
        self._has_answered = False
        self._refused_at: float | None = None
        # Whether this client may read MonarchMeshes of others.
        self._sees_meshes = True
        # Workers have been requested again, and a caller waits for them.
        self._is_healing = False

    def plan(self) -> Plan:
        if not self._arguments.meshes:
            raise ValueError("KubernetesJob without a mesh: nothing to submit")
        has_secret = bool(self._arguments.provisioned) and not self._arguments.insecure and self._arguments.join_secret is None
        return Plan(self.kind, plan_text(self._arguments), redacted=has_secret)

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        ids: dict[str, Any] = {
            "namespace": self._arguments.namespace,
            "anchor": "",
            "anchor_uid": "",
            "submitted": self._now(),
            "joined": False,
            "supplements": 0,
            "route": "",
            "gateway": "",
            "places": {name: [new_record() for _ in range(mesh.num_replicas)] for name, mesh in self._arguments.meshes.items()},
        }
        if self._arguments.provisioned:
            anchor = self._submission().submit(secret)
            ids |= {"anchor": anchor["metadata"]["name"], "anchor_uid": anchor["metadata"]["uid"]}
        else:
            # A missing right is known now.
            self._places(ids)
        return ids

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        try:
            status = self._look(ids)
        except (UnreachableError, ApiError) as error:
            if not self._passes(error):
                raise
            self._seen = None
            hosts = [self._recorded(ids, host) for host in self._hosts()]
            return JobStatus("unknown", f"the API server gives no answer: {str(error).splitlines()[0]}", hosts)
        self._has_answered, self._refused_at = True, None
        return status

    def _passes(self, error: UnreachableError | ApiError) -> bool:
        """Is it an answer of a server that starts, or has too much to do? One that starts may refuse what it has allowed before."""
        if isinstance(error, UnreachableError) or error.status in _BUSY:
            return True
        if error.status != FORBIDDEN or not self._has_answered:
            return False
        now = self._now()
        self._refused_at = now if self._refused_at is None else self._refused_at
        return now - self._refused_at < REFUSED_S

    def _look(self, ids: dict[str, Any]) -> JobStatus:
        places = self._seen = self._places(ids)
        found = {**self._missing_workloads(places), **self._missing_attached(places)}
        if self._is_healing:
            self._remove_stuck(places)
        if self._is_over(places, found):
            text = "; ".join(dict.fromkeys(workload.end for workload in found.values()))
            self._end = ("complete" if any(workload.is_complete for workload in found.values()) else "ended", text)
            return JobStatus("ended", text, [place.status("") for place in places])
        lasting = self._lasting(places, found)
        if lasting is not None and not self._has_joined(ids):
            self._end = ("failed", lasting.reason)
            text = f"failed ({lasting.reason}): {fault_report(self._cluster(), lasting)}"
            return JobStatus("ended", text, [p.status("") for p in places])
        if lasting is not None and self._is_healing:
            raise JobEndedError(lasting.text, title=self._title, state="failed", reason=lasting.reason)
        hosts = [self._host(place, found.get(place.host.mesh)) for place in places]
        phase, detail = self._phase(places, found, hosts)
        self._check_timeout(ids, places, hosts)
        return JobStatus(phase, detail, hosts)

    def ending(self) -> tuple[str, str]:
        """State and reason of the end, as the last `poll` has found it."""
        return self._end

    def troubles(self, ids: dict[str, Any]) -> list[Trouble]:
        """What the API server knows to be wrong with the pods and their nodes."""
        places = self._places(ids)
        found = {**self._missing_workloads(places), **self._missing_attached(places)}
        starting = [place.latest for place in places if place.is_starting and place.fault is None and place.latest is not None]
        slow = {pod.uid: mount_fault(pod, self._cluster().events(pod.name)) for pod in starting[:_EXPLAINED] if pod.node}
        nodes = dict.fromkeys(place.own.node for place in places if place.own is not None and place.own.node)
        return troubles(self._arguments.namespace, places, found, slow, self._cordoned(nodes))

    def _cordoned(self, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes that get no pods any more, as far as this client may see nodes: they belong to no namespace."""
        found: set[str] = set()
        for name in list(nodes)[:_MOST_NODES]:
            try:
                node = self._cluster().get("v1/Node", name)
            except ApiError as error:
                if error.status != FORBIDDEN:
                    raise
                break
            if node is not None and node.get("spec", {}).get("unschedulable"):
                found.add(name)
        return found

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        places, self._seen = self._seen, None
        found: dict[str, list[str | None]] = {name: [] for name in self._arguments.meshes}
        if places is None:
            try:
                places = self._places(ids)
            except (UnreachableError, ApiError) as error:
                if not self._passes(error):
                    raise
                return {name: [record["address"] for record in records] for name, records in ids["places"].items()}
        for place in places:
            found[place.host.mesh].append(place.settle())
        if all(address is not None for of_mesh in found.values() for address in of_mesh):
            self._note_joined(ids)
        return found

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Controllers make lost pods anew; the pods of workers that only the runtime has lost are deleted for that."""
        wanted = set(lost)
        places = [place for place in self._places(ids) if place.host in wanted]
        found = self._missing_workloads(places)
        self._is_healing = True
        again: list[tuple[str, int]] = []
        for place in places:
            mesh = self._arguments.meshes[place.host.mesh]
            if not mesh.provisioned:
                # The pods are not this job's: there is another job of this name, or none.
                if place.successor is None and (place.own is None or place.loss is None or place.own.is_over):
                    continue
            else:
                self._replace(ids, place, found.get(mesh.name))
            place.reopen()
            again.append(place.host)
        return again

    def renew(self, ids: dict[str, Any]) -> list[Host]:
        """What controllers have replaced, or will, is what clients are given from now on; indexes that have completed run once more.

        A pod on a node that does not answer stays: the node may come back.
        """
        again: list[Host] = []
        places = self._places(ids)
        found = self._missing_workloads(places)
        for place in places:
            workload = found.get(place.host.mesh)
            if place.loss is None or (place.own is not None and place.own.is_unreachable and place.successor is None):
                continue
            if self._is_completed(place, workload):
                self._supplement(ids, place.host)
            place.reopen()
            again.append(place.host)
        return again

    def cancel(self, ids: dict[str, Any]) -> None:
        if ids.get("anchor"):
            self._submission().remove()

    def lost(self, ids: dict[str, Any]) -> list[Host]:
        """The places whose workers are over, as far as the cluster knows; none while it gives no answer."""
        try:
            return [place.host for place in self._places(ids) if place.loss is not None]
        except (UnreachableError, ApiError) as error:
            if not self._passes(error):
                raise
            return []

    def last_words(self, ids: dict[str, Any], status: JobStatus) -> JobStatus:
        """The status, and for hosts that are lost the last lines of their workers and the events of their pods."""
        lost = [host for host in status.hosts if host.phase == "lost"][:_EXPLAINED]
        if not lost:
            return status
        try:
            hosts = self._explained(ids, status, lost)
        except (UnreachableError, ApiError) as error:
            if not self._passes(error):
                raise
            return status
        return status._replace(hosts=hosts)

    def _explained(self, ids: dict[str, Any], status: JobStatus, lost: list[HostStatus]) -> list[HostStatus]:
        places = {place.host: place for place in self._places(ids)}
        hosts: list[HostStatus] = []
        for host in status.hosts:
            place = places[Host(host.mesh, host.rank)]
            if host in lost and place.own is not None and (found := place.own_fault) is not None:
                lines = fault_report(self._cluster(), found).partition("\n")[2]
                host = host._replace(detail="\n".join(filter(None, (host.detail, lines))))
            hosts.append(host)
        return hosts

    def pod_words(self, ids: dict[str, Any], hosts: Iterable[Host]) -> dict[Host, str]:
        """What the cluster has of the pods of these hosts: the fault, the last lines of the worker, the events."""
        places = {place.host: place for place in self._places(ids)}
        found: dict[Host, str] = {}
        for host in list(hosts)[:_EXPLAINED]:
            place = places[host]
            pod = place.own or place.latest
            record = place.record["name"]
            found[host] = (
                pod_report(self._cluster(), pod) if pod is not None else f"pod {record} is gone" if record else "no pod has this rank"
            )
        return found

    def printing(self, ids: dict[str, Any]) -> list[Printing]:
        """Containers that have begun: of each rank in the pod that clients were given, and in the one that has the rank.

        The known ones, if the API server does not answer.
        """
        try:
            places = self._places(ids)
        except (UnreachableError, ApiError) as error:
            if not self._passes(error):
                raise
            return [
                Printing(host, record["name"], names.CONTAINER)
                for host in self._hosts()
                if (record := ids["places"][host.mesh][host.rank])["name"]
            ]
        found: list[Printing] = []
        for place in places:
            if place.record["name"] and place.own is None:
                found.append(Printing(place.host, place.record["name"], names.CONTAINER))
            for pod in dict.fromkeys(filter(None, (place.own, place.latest))):
                if (container := pod.main) is not None and container.has_run:
                    found.append(Printing(place.host, pod.name, container.name))
        return list(dict.fromkeys(found))

    def _note_joined(self, ids: dict[str, Any]) -> None:
        if self._has_joined(ids):
            return
        ids["joined"] = True
        if self._note is not None:
            with contextlib.suppress(OSError):  # the job is being killed, or the disk is full
                open(self._note, "x").close()

    def _has_joined(self, ids: dict[str, Any]) -> bool:
        ids["joined"] = ids["joined"] or (self._note is not None and os.path.exists(self._note))
        return bool(ids["joined"])

    # Queries.

    def _submission(self) -> Submission:
        assert self._apply_id is not None
        cluster = self._cluster()
        clients = own_peer(cluster) if self._is_in_cluster and self._arguments.network_policy else []
        return Submission(self._arguments, cluster, self._apply_id, clients)

    def _hosts(self) -> Iterator[Host]:
        for name, mesh in self._arguments.meshes.items():
            for rank in range(mesh.num_replicas):
                yield Host(name, rank)

    def _recorded(self, ids: dict[str, Any], host: Host) -> HostStatus:
        record = ids["places"][host.mesh][host.rank]
        return HostStatus(host.mesh, host.rank, record["name"], "waiting", record["address"], "")

    def _places(self, ids: dict[str, Any]) -> list[Place]:
        """Every rank with its pods: one list for all meshes of ours, one more for each that was there before."""
        pods: dict[Host, list[pod_view.PodView]] = {}
        if self._arguments.provisioned:
            for pod in self._cluster().list("v1/Pod", f"{names.JOB_LABEL}={self._apply_id}")[0]:
                found = pod_view.view(pod, self._index_label())
                if found.rank is not None:
                    pods.setdefault(Host(found.mesh, found.rank), []).append(found)
        for mesh in self._arguments.meshes.values():
            if not mesh.provisioned:
                for pod in self._cluster().list("v1/Pod", mesh.selector)[0]:
                    found = pod_view.view(pod, mesh.pod_rank_label)
                    if found.rank is not None:
                        pods.setdefault(Host(mesh.name, found.rank), []).append(found)
        places: list[Place] = []
        for host in self._hosts():
            record = ids["places"][host.mesh][host.rank]
            place = Place(host, record, pods.get(host, ()), self._arguments.meshes[host.mesh].port)
            place.note()
            places.append(place)
        return places

    @property
    def _has_indexes(self) -> bool:
        """Are the pods those of Indexed Jobs?"""
        return self._arguments.provisioner == "native" and self._arguments.workload != "statefulset"

    def _index_label(self) -> str:
        return names.COMPLETION_INDEX if self._has_indexes else names.POD_INDEX_LABEL

    def _missing_workloads(self, places: list[Place]) -> dict[str, MeshWorkload]:
        """Of meshes of ours that lack a pod."""
        missing = {place.host.mesh for place in places if place.latest is None or place.latest.is_over}
        missing &= {mesh.name for mesh in self._arguments.provisioned}
        if not missing:
            return {}
        assert self._apply_id is not None
        return workloads.look(self._arguments, self._cluster(), self._apply_id, missing)

    def _missing_attached(self, places: list[Place]) -> dict[str, MeshWorkload]:
        """Of attached meshes that lack a pod: what an operator reports of MonarchMeshes of their names, where that may be seen."""
        found: dict[str, MeshWorkload] = {}
        missing = {place.host.mesh for place in places if place.latest is None}
        for name in sorted(missing):
            mesh = self._arguments.meshes[name]
            if mesh.provisioned or mesh.label_selector is not None or not self._sees_meshes:
                continue
            try:
                workload = workloads.attached_mesh(self._cluster(), name)
            except ApiError as error:
                if error.status in _BUSY:
                    raise
                self._sees_meshes = False
                break
            if workload is not None:
                found[name] = workload
        return found

    def _is_over(self, places: list[Place], found: dict[str, MeshWorkload]) -> bool:
        """Have the workloads of all meshes of ours ended, and their pods?"""
        ours = {mesh.name for mesh in self._arguments.provisioned}
        if not ours or not all(name in found and found[name].end for name in ours):
            return False
        return all(place.latest is None or place.latest.is_over for place in places if place.host.mesh in ours)

    def _lasting(self, places: list[Place], found: dict[str, MeshWorkload]) -> Fault | None:
        """A fault that has lasted for too long."""
        worst: Fault | None = None
        for place in places:
            fault = place.fault
            if place.latest is None and place.host.mesh in found and (not place.is_given or place.loss is not None):
                fault = found[place.host.mesh].fault
            elif fault is None and place.is_starting and place.latest is not None and place.latest.node:
                fault = self._slow_start(place.latest)
            since: float | None = place.record["fault_since"]
            if fault is None or not fault.is_lasting:
                place.record["fault_since"] = None
            elif since is None:
                place.record["fault_since"] = self._now()
            elif self._now() - since >= FAULT_S:
                worst = worst or fault
        return worst

    def _slow_start(self, pod: pod_view.PodView) -> Fault | None:
        """A fault that only events show, of a pod that starts no container. They are asked for where that takes long."""
        now = self._now()
        at, fault = self._starts.get(pod.uid, (now, None))
        if now - at >= SLOW_START_S:
            at, fault = now, mount_fault(pod, self._cluster().events(pod.name))
        self._starts[pod.uid] = at, fault
        return fault

    def _remove_stuck(self, places: list[Place]) -> None:
        """Takes pods away that no node ends or starts, so that their controllers make others: their node may be gone.

        A cluster sees that after a minute, and until then gives pods to this node.
        """
        now = self._now()
        for place in places:
            pod = place.latest
            if place.is_given or pod is None or not self._arguments.meshes[place.host.mesh].provisioned:
                continue
            is_unseen = pod.phase == "Pending" and bool(pod.node) and not pod.containers
            if (pod.deleted_at or is_unseen) and now - self._stuck.setdefault(pod.uid, now) >= STUCK_S:
                self._stuck[pod.uid] = now
                self._cluster().delete("v1/Pod", pod.name, grace=0, uid=pod.uid)

    def _host(self, place: Place, workload: MeshWorkload | None) -> HostStatus:
        waiting = f"no pod has rank {place.host.rank}"
        if workload is not None:
            waiting = workload.end or (workload.fault.text if workload.fault else "") or workload.waiting
        status = place.status(waiting)
        _, slow = self._starts.get("" if place.latest is None else place.latest.uid, (0.0, None))
        if slow is not None and status.phase == "waiting":
            status = status._replace(detail=slow.text)
        since: float | None = place.record["fault_since"]
        if status.phase == "waiting" and since is not None and self._now() - since >= FAULT_S:
            status = status._replace(phase="lost")
        return status

    def _phase(self, places: list[Place], found: dict[str, MeshWorkload], hosts: list[HostStatus]) -> tuple[Phase, str]:
        suspended = next((workload.waiting for workload in found.values() if workload.is_suspended), "")
        if suspended:
            return "pending", suspended
        starting = [host for place, host in zip(places, hosts, strict=True) if place.is_starting and host.phase == "waiting"]
        if not starting:
            return "running", ""
        words = next((f"; {Host(host.mesh, host.rank)}: {host.detail}" for host in starting if host.detail), "")
        return "pending", f"{len(starting)} of {len(hosts)} pods do not run{words}"

    def _check_timeout(self, ids: dict[str, Any], places: list[Place], hosts: list[HostStatus]) -> None:
        """The user's own bound for the start of the job."""
        limit = self._arguments.timeout
        if limit is None or self._now() - ids["submitted"] < limit or self._has_joined(ids):
            return
        missing = {
            str(place.host): host.detail or host.name or "no pod"
            for place, host in zip(places, hosts, strict=True)
            if (not place.is_given or place.loss is not None) and not (place.latest is not None and place.latest.is_ready)
        }
        if not missing:
            return
        with contextlib.suppress(UnreachableError, ApiError):
            words = self.pod_words(ids, [place.host for place in places if str(place.host) in missing])
            missing |= {str(host): text for host, text in words.items() if text}
        self.cancel(ids)
        joined = len(places) - len(missing)
        done = " and the job was removed" if ids.get("anchor") else ""
        raise JoinTimeoutError(
            f"{joined} of {len(places)} pods were ready within {limit} s (timeout){done}",
            title=self._title,
            cause="\n".join(f"{name}: {words}" for name, words in missing.items()),
            joined=joined,
            total=len(places),
            hosts=missing,
        )

    def _replace(self, ids: dict[str, Any], place: Place, workload: MeshWorkload | None) -> None:
        own = place.own
        if own is not None and not own.has_ended:
            # The end of a pod on a node that does not answer is never reported: only force frees its place.
            grace = 0 if own.is_unreachable or own.disruption or own.deleted_at else GRACE_S
            self._cluster().delete("v1/Pod", own.name, grace=grace, uid=own.uid)
        elif self._is_completed(place, workload):
            self._supplement(ids, place.host)
        elif workload is not None and workload.end:
            raise SubmitError(f"no worker can be started again: {workload.end}", title=self._title, hint="kill the job and apply it anew")

    def _is_completed(self, place: Place, workload: MeshWorkload | None) -> bool:
        """Will no pod of this rank come, since its worker has ended with exit code 0?"""
        if place.successor is not None or workload is None or not self._has_indexes:
            return False
        # The Job counts the success a moment later.
        has_succeeded = place.own is not None and place.own is place.latest and place.own.phase == "Succeeded"
        return has_succeeded or place.host.rank in workload.completed

    def _supplement(self, ids: dict[str, Any], host: Host) -> None:
        ids["supplements"] += 1
        self._submission().supplement(ids["anchor_uid"], host.mesh, host.rank, ids["supplements"])
