"""`python -m monarch.job.kubernetes.operator`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable

import click

from monarch.extension import SignalThread
from monarch.job.errors import JobError
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.operator import endpoints
from monarch.job.kubernetes.operator.controller import Controller
from monarch.job.kubernetes.operator.leadership import Leadership
from monarch.job.kubernetes.operator.metrics import Metrics

Place = tuple[str, int] | None

LOST = 1  # the exit code of an operator that is no longer the leader: the kubelet starts it again


class _Address(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    name = "address"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        try:
            return endpoints.address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--metrics-bind-address", "metrics_at", type=_Address(), default="0", help="Where /metrics is, [HOST]:PORT; 0: nowhere.")
@click.option(
    "--health-probe-bind-address",
    "health_at",
    type=_Address(),
    default=":8081",
    help="Where /healthz and /readyz are, [HOST]:PORT; 0: nowhere.",
)
@click.option("--leader-elect", is_flag=True, help="Works only while it holds the Lease monarch-operator: for several replicas.")
@click.option("--namespace", default="", help="The only namespace whose meshes are served; all of them by default.")
def main(metrics_at: Place, health_at: Place, leader_elect: bool, namespace: str) -> None:
    """Makes the Service and the StatefulSet of each MonarchMesh, and keeps its status.

    Ends with 0 after SIGTERM or Ctrl-C, with 1 where it has lost the lease.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("monarch-operator")
    stop, lost = threading.Event(), threading.Event()
    wake = threading.Event()
    SignalThread((signal.SIGTERM, signal.SIGINT), lambda number: (stop.set(), wake.set()))
    try:
        connection = KubeConfig().load()
    except JobError as error:
        raise click.ClickException(str(error)) from None
    metrics = Metrics()
    identity = f"{os.uname().nodename}_{uuid.uuid4()}"
    # The Lease is in the namespace of the operator.
    own = namespace or connection.namespace or "default"
    leadership = Leadership(Cluster(connection, own), identity, log) if leader_elect else None
    controller = Controller(connection, namespace, lambda: leadership is None or leadership.is_held, metrics, log)
    is_leader = threading.Event()
    _serve(health_at, metrics_at, metrics, lambda: controller.is_synced or not is_leader.is_set(), log)
    if leadership is not None:
        if not leadership.acquire(stop):
            return
        log.info("%s is the leader", identity)
        keeper = threading.Thread(target=_keep, args=(leadership, stop, lost, wake), name="lease", daemon=True)
        keeper.start()
    is_leader.set()
    metrics.set("monarch_operator_leader", 1)
    controller.start()
    log.info("serving the meshes of %s", f"namespace {namespace}" if namespace else "all namespaces")
    wake.wait()
    if lost.is_set():
        log.error("the lease is lost: another operator may work now")
        os._exit(LOST)  # at once: a request in flight could undo changes of the new leader
    controller.stop()
    if leadership is not None:
        leadership.release()
    log.info("ended")


def _keep(leadership: Leadership, stop: threading.Event, lost: threading.Event, wake: threading.Event) -> None:
    leadership.keep(stop, lost)
    wake.set()


def _serve(health_at: Place, metrics_at: Place, metrics: Metrics, is_ready: Callable[[], bool], log: logging.Logger) -> None:
    health: dict[str, endpoints.Answer] = {
        "/healthz": lambda: (True, "ok"),
        "/readyz": lambda: (True, "ok") if is_ready() else (False, "the meshes are not listed yet"),
    }
    numbers: dict[str, endpoints.Answer] = {"/metrics": lambda: (True, metrics.text())}
    if metrics_at is not None and metrics_at == health_at and metrics_at[1]:
        health, metrics_at = health | numbers, None
    for what, place, answers in (("health", health_at, health), ("metrics", metrics_at, numbers)):
        if place is not None:
            try:
                log.info("%s at port %d", what, endpoints.serve(place, answers))
            except OSError as error:
                raise click.ClickException(f"cannot listen at {place[0]}:{place[1]}: {error.strerror}") from None


if __name__ == "__main__":
    main()
