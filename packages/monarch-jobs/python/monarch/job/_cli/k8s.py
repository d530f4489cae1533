"""`monarch k8s install|rbac|run|doctor`: what a cluster needs, what a client may do, a script in the cluster, and what is wrong."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import click

from monarch.job._cli.verb import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job.kubernetes.access.client import Cluster
    from monarch.job.kubernetes.access.config import KubeConfig

_MODES = ("native", "attach", "monarchmesh", "run")
_WORKLOADS = ("job", "statefulset", "jobset")


@click.group("k8s", short_help="A Kubernetes cluster: what it needs, rights of clients, scripts in it, checks.")
def command() -> None:
    """Sets up, uses and checks a Kubernetes cluster. The cluster is that of the kubeconfig, or the one that this pod runs in."""


def _sub(name: str) -> Callable[[Callable[..., int | None]], click.Command]:
    """A command with the options that choose cluster and namespace."""

    def made(function: Callable[..., int | None]) -> click.Command:
        options = (
            click.option("--kubeconfig", metavar="FILE", help="In place of KUBECONFIG and ~/.kube/config."),
            click.option("--context", metavar="NAME", help="In place of the current context."),
            click.option("-n", "--namespace", metavar="NAME", help="In place of the context's namespace."),
        )
        return command.command(name)(functools.reduce(lambda found, option: option(found), reversed(options), guarded(function)))

    return made


def _config(kubeconfig: str | None, context: str | None) -> KubeConfig:
    _check_extra()
    from monarch.job.kubernetes.access.config import KubeConfig

    if kubeconfig is not None:
        return KubeConfig.from_path(kubeconfig, context=context)
    return KubeConfig.from_context(context) if context is not None else KubeConfig()


def _check_extra() -> None:
    from monarch.job import kubernetes

    _ = kubernetes.KubeConfig  # `BackendMissingError` with the line of pip


def _cluster(config: KubeConfig, namespace: str | None, title: str) -> Cluster:
    from monarch.job.kubernetes.access.client import Cluster

    connection = config.load()
    return Cluster(connection, namespace or connection.namespace or "default", title)


def _namespace(config: KubeConfig, namespace: str | None) -> str:
    """Where objects go that are only printed: a kubeconfig is not needed for it."""
    from monarch.job.errors import CredentialsError

    if namespace is not None:
        return namespace
    try:
        return config.load().namespace or "default"
    except CredentialsError:
        return "default"


def _show(objects: list[dict[str, Any]]) -> None:
    from monarch.job.kubernetes.manifests.yaml_text import documents

    click.echo(documents(objects), nl=False)


@_sub("install")
@click.option("--operator", is_flag=True, help="The operator for MonarchMesh too; without it, only the definition of the kind.")
@click.option("--image", metavar="IMAGE", help="Of the operator: REPOSITORY:TAG.")
@click.option("--print", "is_printed", is_flag=True, help="Print the manifests, and change nothing.")
def install(kubeconfig: str | None, context: str | None, namespace: str | None, operator: bool, image: str | None, is_printed: bool) -> int:
    """Makes the kind MonarchMesh known to the cluster. Jobs that make their pods natively need none of this.

    The operator goes into the namespace monarch-system, or into that of --namespace. Installing again updates what is there.
    """
    from monarch.job._cli import k8s_install

    if image is not None and not operator:
        raise click.UsageError("--image is that of the operator: it needs --operator")
    _check_extra()
    objects = k8s_install.objects(operator=operator, namespace=namespace, image=image)
    if is_printed:
        _show(objects)
        return 0
    cluster = _cluster(_config(kubeconfig, context), namespace, "monarch k8s install")
    k8s_install.apply(cluster, objects)
    return 0


@_sub("rbac")
@click.option(
    "--mode",
    type=click.Choice(_MODES),
    default="native",
    show_default=True,
    help="How the client gets its pods; run: `monarch k8s run` as well.",
)
@click.option("--workload", type=click.Choice(_WORKLOADS), default="job", show_default=True, help="What native jobs are made of.")
@click.option("--service-account", metavar="NAME", help="For a client in a pod; made where it is missing. By default monarch-client.")
@click.option("--user", metavar="NAME", help="For a user of the cluster, in place of a service account.")
@click.option("--group", metavar="NAME", help="For a group of users.")
@click.option("--forward/--no-forward", default=None, help="The port-forward, for clients outside: by default with --user and --group.")
@click.option("--join-secret", is_flag=True, help="Reading the Secret that attached pods were given.")
@click.option("--print", "is_printed", is_flag=True, help="Print the manifests, and change nothing.")
def rbac(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    mode: Any,
    workload: str,
    service_account: str | None,
    user: str | None,
    group: str | None,
    forward: bool | None,
    join_secret: bool,
    is_printed: bool,
) -> int:
    """Gives a client of jobs the rights that it uses, and no others, in one namespace."""
    from monarch.job._cli import k8s_install
    from monarch.job.kubernetes.manifests import rbac as rights

    if sum(one is not None for one in (service_account, user, group)) > 1:
        raise click.UsageError("--service-account, --user and --group exclude each other")
    config = _config(kubeconfig, context)
    place = _namespace(config, namespace)
    is_forwarding = forward if forward is not None else bool(user or group)
    found = rights.rules(mode, forward=is_forwarding, workload=workload, join_secret=join_secret)
    objects = k8s_install.grant(place, found, service_account=service_account, user=user, group=group, mode=mode, workload=workload)
    if is_printed:
        _show(objects)
        return 0
    k8s_install.apply(_cluster(config, place, "monarch k8s rbac"), objects)
    return 0


@_sub("run")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--image", metavar="IMAGE", help="Of the script's pod and of the workers, with Python, Monarch and what they import.")
@click.option("--pod-template", "template", type=click.Path(exists=True, dir_okay=False), help="A PodTemplateSpec in place of --image.")
@click.option("--mesh", "meshes", multiple=True, metavar="NAME=REPLICAS", help="A mesh of the job `monarch_job.job`.")
@click.option("--service-account", metavar="NAME", help="One that exists, for the script; else one is made, with the rights of a client.")
@click.option("--keep", is_flag=True, help="Leave the objects in the cluster, to look at them.")
def run(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    script: str,
    arguments: tuple[str, ...],
    image: str | None,
    template: str | None,
    meshes: tuple[str, ...],
    service_account: str | None,
    keep: bool,
) -> int:
    """Runs SCRIPT in a pod of the cluster, shows its output, and exits with its exit code.

    \b
    The script gets the hosts of --mesh by
        from monarch_job import job
        hosts = job.state().workers
    or makes a KubernetesJob itself. All that the command has made is removed when it ends, Ctrl-C included.

    To make a service account needs the rights of `monarch k8s rbac --mode run`; `monarch k8s rbac` makes one for --service-account.
    """
    from monarch.job._cli import k8s_run

    if (image is None) == (template is None):
        raise click.UsageError("exactly one of --image, --pod-template")
    cluster = _cluster(_config(kubeconfig, context), namespace, f"monarch k8s run {script}")
    return k8s_run.run(cluster, k8s_run.request(script, arguments, image, template, meshes, service_account), keep=keep)


@_sub("doctor")
@click.option("--mode", type=click.Choice(_MODES), default="native", show_default=True, help="Whose rights are checked.")
@click.option("--workload", type=click.Choice(_WORKLOADS), default="job", show_default=True, help="What native jobs are made of.")
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
def doctor(kubeconfig: str | None, context: str | None, namespace: str | None, mode: Any, workload: str, as_json: bool) -> int:
    """Checks the way to the cluster and what it offers; changes nothing. Exit code 1 where something is missing."""
    from monarch.job._cli import k8s_doctor

    config = _config(kubeconfig, context)
    checks: list[k8s_doctor.Check] = []
    for check in k8s_doctor.checks(config, namespace, mode, workload):
        checks.append(check)
        if not as_json:
            click.echo(f"{check.state:<5} {check.name}: {check.detail}")
    if as_json:
        click.echo(json.dumps([check._asdict() for check in checks]))
    return 1 if any(check.state == k8s_doctor.FAILED for check in checks) else 0
