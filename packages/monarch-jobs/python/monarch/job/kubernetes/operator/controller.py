"""The work of an operator: watches put keys of meshes into a queue, a few threads take them and reconcile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch.job.errors import JobError
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.operator.ownership import controller
from monarch.job.kubernetes.operator.reconciler import SERVICE, STATEFUL_SET, Reconciler
from monarch.job.kubernetes.operator.work_queue import Key, WorkQueue

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.connection import ApiConnection
    from monarch.job.kubernetes.access.watch import Change
    from monarch.job.kubernetes.operator.metrics import Metrics

WORKERS = 4  # a mesh with slow requests delays only a part of the others
RESYNC_S = 600.0  # seconds between two checks for changes that no watch reports, such as the removal of a label from a StatefulSet
WATCH_RETRY_S = 5.0
FINISH_S = 10.0

_OURS = f"{names.APP_LABEL}={names.APP},{names.MESH_LABEL}"


class Controller:
    """`may_work` is asked before each look; `namespace` is empty for all namespaces."""

    def __init__(self, connection: ApiConnection, namespace: str, may_work: Callable[[], bool], metrics: Metrics, log: Any) -> None:
        self._cluster = Cluster(connection, namespace)
        self._reconciler = Reconciler(connection)
        self._may_work = may_work
        self._metrics = metrics
        self._log = log
        self._queue = WorkQueue()
        self._lock = threading.Lock()
        self._ready: dict[Key, bool] = {}
        self._synced = threading.Event()
        self._stop = threading.Event()
        self._workers = [threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(WORKERS)]

    @property
    def is_synced(self) -> bool:
        """Has it seen all meshes once?"""
        return self._synced.is_set()

    def start(self) -> None:
        for kind, selector in ((names.MESH_KIND, ""), (STATEFUL_SET, _OURS), (SERVICE, _OURS)):
            # A thread that waits for the server's next change ends with the process.
            threading.Thread(target=self._watch, args=(kind, selector), name=f"watch {kind}", daemon=True).start()
        threading.Thread(target=self._resync, name="resync", daemon=True).start()
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """Ends after the looks that are under way, which take some seconds at most."""
        self._stop.set()
        self._queue.close()
        end = time.monotonic() + FINISH_S
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))

    def _watch(self, kind: str, selector: str) -> None:
        while not self._stop.is_set():
            try:
                for change in self._cluster.watch(kind, selector, stop=self._stop):
                    self._see(kind, change)
            except Exception as error:
                # The definition or a right may still be missing.
                self._log.error("cannot watch %s: %s", kind, error)
                self._stop.wait(WATCH_RETRY_S)

    def _see(self, kind: str, change: Change) -> None:
        items = change.items if change.type == "LISTED" else [change.object]
        if kind != names.MESH_KIND:
            for item in items:
                owner = controller(item)
                if owner is not None and owner.get("kind") == "MonarchMesh":
                    key = Key(item["metadata"]["namespace"], str(owner["name"]))
                    if kind != STATEFUL_SET:
                        self._reconciler.forget(key)
                    self._queue.put(key)
            return
        keys = [Key(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items]
        with self._lock:
            if change.type == "LISTED":
                self._ready = {key: self._ready.get(key, False) for key in keys}
            elif change.type == "DELETED":
                self._ready.pop(keys[0], None)
            else:
                self._ready.setdefault(keys[0], False)
            self._count()
        for key in keys:
            self._queue.put(key)
        if change.type == "LISTED":
            self._synced.set()

    def _resync(self) -> None:
        while not self._stop.wait(RESYNC_S):
            with self._lock:
                keys = list(self._ready)
            for key in keys:
                self._reconciler.forget(key)
                self._queue.put(key)

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            if not self._may_work():
                # The process ends because of it, or the lease is renewed in a moment.
                self._queue.done(key, failed=True)
                continue
            start = time.monotonic()
            failed = False
            try:
                self._note(key, self._reconciler.reconcile(key))
            except Exception as error:
                # An error of one mesh must not stop the others.
                failed = True
                self._note(key, False)
                text = "\n".join((str(error), *getattr(error, "__notes__", ())))
                self._log.error("%s/%s: %s", key.namespace, key.name, text, exc_info=not isinstance(error, JobError | ValueError))
            self._metrics.add("monarch_operator_reconcile_seconds_total", time.monotonic() - start)
            self._metrics.add("monarch_operator_reconciles_total", 1, 'result="error"' if failed else 'result="ok"')
            self._queue.done(key, failed=failed)

    def _note(self, key: Key, ready: bool | None) -> None:
        with self._lock:
            if ready is not None and key in self._ready:
                self._ready[key] = ready
            self._count()

    def _count(self) -> None:
        self._metrics.set("monarch_operator_meshes", len(self._ready))
        self._metrics.set("monarch_operator_meshes_ready", sum(self._ready.values()))
