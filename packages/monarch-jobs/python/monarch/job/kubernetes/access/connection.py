"""HTTP requests to one API server: TLS, credentials, time-outs."""

from __future__ import annotations


class ApiConnection:
    """`server` is the URL; `namespace` that of the context, if any. Made by `KubeConfig.load()`."""

    server: str
    namespace: str | None

    def close(self) -> None:
        """Closes its sockets."""
        raise NotImplementedError
