"""Where an API server is and how it is asked: the service account of a pod, a kubeconfig, or a `Configuration` of the official client.

Nothing of this imports `kubernetes`, whose models take 0.5 to 0.8 s of processor time to load: the kubeconfig is read here, and requests
are plain HTTP. Nothing is written to disk either; certificates that a kubeconfig has inline stay in memory. ADR 43 has what the official
client lacks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch.job.errors import CredentialsError
from monarch.job.kubernetes.access import identity
from monarch.job.kubernetes.access.connection import ApiConnection, Endpoint
from monarch.job.kubernetes.access.kubeconfig_file import default_paths, read_file, select

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class KubeConfig:
    """`KubeConfig()` is the service account of the pod where there is one, else `KUBECONFIG` or `~/.kube/config`.

    Args:
        local: a kubeconfig file, as for `from_path`.
        remote: a `kubernetes.client.Configuration`, as for `from_config`.

    Two are equal that have the same file and context, or the same configuration.
    """

    __module__ = "monarch.job.kubernetes"

    def __init__(self, local: str | os.PathLike[str] | None = None, remote: Any = None) -> None:
        if local is not None and remote is not None:
            raise ValueError("KubeConfig: local and remote exclude each other: a file, or a configuration")
        if remote is not None and not isinstance(getattr(remote, "host", None), str):
            raise TypeError(f"KubeConfig: remote is a kubernetes.client.Configuration, not {type(remote).__name__}")
        self._path: str | None = None if local is None else os.path.abspath(os.path.expanduser(local))
        self._context: str | None = None
        self._given: Any = remote

    @property
    def local(self) -> Path | None:
        """The kubeconfig file; None where it is the default, or a configuration."""
        return None if self._path is None else Path(self._path)

    @property
    def remote(self) -> Any:
        """The `Configuration` that was given, or None."""
        return self._given

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KubeConfig):
            return NotImplemented
        return (self._path, self._context) == (other._path, other._context) and self._given is other._given

    def __hash__(self) -> int:
        return hash((self._path, self._context, id(self._given)))

    @classmethod
    def from_path(cls, path: str, *, context: str | None = None) -> KubeConfig:
        """A kubeconfig file, read at `load()`; `context` in place of its current one."""
        made = cls(os.fspath(path))
        made._context = context
        return made

    @classmethod
    def from_context(cls, context: str) -> KubeConfig:
        """A context of the default kubeconfigs, also inside a pod."""
        made = cls()
        made._context = context
        return made

    @classmethod
    def from_config(cls, config: Any) -> KubeConfig:
        """A `kubernetes.client.Configuration`, of the official client. It is never written anywhere: a re-attach needs it again."""
        if not isinstance(getattr(config, "host", None), str):
            raise TypeError(f"from_config takes a kubernetes.client.Configuration, not {type(config).__name__}")
        made = cls()
        made._given = config
        return made

    @property
    def out_of_cluster(self) -> bool:
        """Is this no service account of a pod? Pods have no route from here, as a rule."""
        return self._path is not None or self._given is not None or self._context is not None or not _in_cluster()

    def saved(self) -> dict[str, Any] | None:
        """What a state file has: `{"path": ..., "context": ...}`, `{"given": True}`, or None for the default; never a secret."""
        if self._given is not None:
            return {"given": True}
        if self._path is None and self._context is None:
            return None
        return {key: value for key, value in (("path", self._path), ("context", self._context)) if value is not None}

    @classmethod
    def restored(cls, saved: Mapping[str, Any] | None) -> KubeConfig:
        """From `saved()`; `CredentialsError` where that was a given `Configuration`."""
        if not saved:
            return cls()
        if saved.get("given"):
            what = "the job was made with KubeConfig.from_config(), which is never written anywhere"
            hint = "use the job object of a script that makes the KubeConfig again, or a kubeconfig file: KubeConfig.from_path()"
            raise CredentialsError(what, path="kubeconfig", hint=hint)
        made = cls()
        made._path, made._context = saved.get("path"), saved.get("context")
        return made

    def kubectl_options(self) -> list[str] | None:
        """The options that have kubectl use the same; None where it cannot."""
        if self._given is not None:
            return None
        return [
            *(["--kubeconfig", self._path] if self._path is not None else []),
            *(["--context", self._context] if self._context is not None else []),
        ]

    def describe(self) -> str:
        """Where the credentials come from, for people."""
        if self._given is not None:
            return "a Configuration of the script"
        if not self.out_of_cluster:
            return f"the service account of this pod ({SERVICE_ACCOUNT})"
        return os.pathsep.join(self._paths()) + (f", context '{self._context}'" if self._context else "")

    def __repr__(self) -> str:
        return f"<KubeConfig: {self.describe()}>"

    def load(self) -> ApiConnection:
        """Reads it all: what `Cluster` takes. Exec plugins run with the first request. `CredentialsError` that names file and context."""
        if self._given is not None:
            return _of_configuration(self._given)
        if not self.out_of_cluster:
            return _of_pod()
        return _of_files(self._paths(), self._context)

    def check_server(self, connection: ApiConnection, server: str | None, title: str) -> None:
        """Refuses a connection to another API server than the one that a job was submitted to: a current context can change meanwhile.

        None is the server of a job that is not submitted. `CredentialsError` names both.
        """
        if server is None or connection.server == server:
            return
        raise CredentialsError(
            f"the API server is {connection.server}, and {title} was submitted to {server}",
            path=connection.source,
            hint="choose the context of that cluster (`kubectl config use-context`, KUBECONFIG); KubeConfig.from_path(..., context=...) "
            "makes a job independent of the current one",
        )

    def _paths(self) -> list[str]:
        return [self._path] if self._path is not None else default_paths()


def _in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and os.path.exists(f"{SERVICE_ACCOUNT}/token")


def _of_pod() -> ApiConnection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    authority = read_file(f"{SERVICE_ACCOUNT}/ca.crt", "the certificate of the cluster")
    try:
        namespace: str | None = read_file(f"{SERVICE_ACCOUNT}/namespace", "the namespace of the pod").decode().strip() or None
    except CredentialsError:
        namespace = None
    who = identity.TokenFile(f"{SERVICE_ACCOUNT}/token", "the token of the service account")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ApiConnection(Endpoint(server, SERVICE_ACCOUNT, authority=authority, proxy=""), who, namespace=namespace)


def _of_files(paths: list[str], context: str | None) -> ApiConnection:
    found = select(paths, context)
    cluster = found.cluster
    server = cluster.text("server")
    if not server.startswith(("https://", "http://")):
        raise CredentialsError(f"the cluster '{cluster.name}' has the server '{server}', which is no URL", path=cluster.path)
    is_insecure = bool(cluster.value.get("insecure-skip-tls-verify"))
    authority = cluster.bytes("certificate-authority")
    if is_insecure and authority is not None:
        what = f"the cluster '{cluster.name}' has both insecure-skip-tls-verify and a certificate-authority"
        raise CredentialsError(what, path=cluster.path)
    plugin_input: dict[str, Any] = {"server": server, "insecure-skip-tls-verify": is_insecure}
    for key in ("certificate-authority-data", "tls-server-name", "proxy-url"):
        if cluster.text(key):
            plugin_input[key] = cluster.text(key)
    plugin_input["config"] = next(
        (one["extension"] for one in cluster.value.get("extensions") or () if one.get("name") == "client.authentication.k8s.io/exec"), None
    )
    endpoint = Endpoint(
        server,
        f"{found.source}, context '{found.context}'",
        authority=authority,
        is_verified=not is_insecure,
        server_name=cluster.text("tls-server-name") or None,
        proxy=cluster.text("proxy-url") or None,
    )
    who = identity.of_user(found.user, os.path.dirname(found.user.path), plugin_input)
    return ApiConnection(endpoint, who, namespace=found.namespace, headers=identity.impersonation(found.user))


def _of_configuration(config: Any) -> ApiConnection:
    """`Any`: to name the attributes of the official class would import it."""
    chain, key = config.cert_file, config.key_file
    certificate = None
    if chain and key:
        certificate = identity.Certificate(read_file(chain, "cert_file"), read_file(key, "key_file"))
    data = getattr(config, "ca_cert_data", None)
    authority = data.encode() if isinstance(data, str) else data
    if authority is None and config.ssl_ca_cert:
        authority = read_file(config.ssl_ca_cert, "ssl_ca_cert")

    def headers() -> Mapping[str, str]:
        # The names are those of the API description; `authorization` is the older one.
        hook = getattr(config, "refresh_api_key_hook", None)
        if hook is not None:
            hook(config)
        for name in ("BearerToken", "authorization"):
            value = config.api_key.get(name)
            if value:
                prefix = config.api_key_prefix.get(name)
                return {"Authorization": f"{prefix} {value}" if prefix else str(value)}
        if config.username:
            return {"Authorization": str(config.get_basic_auth_token())}
        return {}

    endpoint = Endpoint(
        str(config.host),
        "the given Configuration",
        authority=authority,
        is_verified=bool(config.verify_ssl),
        server_name=getattr(config, "tls_server_name", None),
        proxy=config.proxy or None,
    )
    return ApiConnection(endpoint, identity.Hooked(headers, certificate))
