"""All requests to the API server. Objects are plain dicts, kinds are `v1/Pod`, `batch/v1/Job`, `monarch.pytorch.org/v1alpha1/MonarchMesh`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.connection import ApiConnection

Object = dict[str, Any]


class Change(NamedTuple):
    """One thing that a watch reports: `type` is ADDED, MODIFIED, DELETED, or LISTED with all objects in `items` (at the start and after each gap)."""

    type: str
    object: Object
    items: list[Object]


class Cluster:
    """Requests of a job in a namespace; `title` is `kubernetes job NAME`, the begin of errors. Time-outs and `time_limit` bound every request."""

    def __init__(self, connection: ApiConnection, namespace: str, title: str = "") -> None:
        self.connection = connection
        self.namespace = namespace
        self.title = title

    def apply(self, obj: Object, *, force: bool = False) -> Object:
        """Server-side apply as field manager `monarch`, unknown fields refused; the object as it is then. `SubmitError`."""
        raise NotImplementedError

    def create(self, obj: Object) -> Object:
        """Makes a new object; `SubmitError` with reason "AlreadyExists" where there is one."""
        raise NotImplementedError

    def get(self, kind: str, name: str) -> Object | None:
        """None where there is none."""
        raise NotImplementedError

    def list(self, kind: str, selector: str = "", *, fields: str = "") -> tuple[list[Object], str]:
        """The objects, and the resource version of the list."""
        raise NotImplementedError

    def delete(self, kind: str, name: str, *, propagation: str = "Background", grace: int | None = None, uid: str | None = None) -> bool:
        """False where there is none (with `uid`: none of this uid); `propagation` is Background, Foreground or Orphan, `grace` in seconds."""
        raise NotImplementedError

    def patch(self, kind: str, name: str, changes: Object, *, subresource: str = "") -> Object:
        """A JSON merge patch."""
        raise NotImplementedError

    def update(self, obj: Object, *, subresource: str = "") -> Object | None:
        """Replaces it; None where the resource version of `obj` is not the current one."""
        raise NotImplementedError

    def pod_log(self, name: str, container: str | None = None, lines: int = 10, *, previous: bool = False) -> str:
        """The last lines; "" where there are none yet."""
        raise NotImplementedError

    def follow_log(self, name: str, container: str | None = None) -> Iterator[bytes]:
        """The output as it comes, to its end."""
        raise NotImplementedError

    def events(self, name: str, kind: str = "Pod") -> list[Object]:
        """Of an object, oldest first."""
        raise NotImplementedError

    def can_i(self, verb: str, resource: str) -> bool:
        """SelfSubjectAccessReview; `resource` is `pods`, `pods/log`, `jobs.batch` or `statefulsets.apps/scale`."""
        raise NotImplementedError

    def server_version(self) -> tuple[int, int]:
        """Major, minor."""
        raise NotImplementedError

    def watch(self, kind: str, selector: str = "", *, timeout: float | None = None) -> Iterator[Change]:
        """Lists, then reports changes for ever, or for `timeout` seconds; lists again after each gap (expiry, a cut connection, a restarted server)."""
        raise NotImplementedError
