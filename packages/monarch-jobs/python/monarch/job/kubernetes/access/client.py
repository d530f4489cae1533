"""All requests to the API server. Objects are plain dicts, kinds are `v1/Pod`, `batch/v1/Job` and the like.

Ours: the official client has a class for each kind, and its errors have no words of jobs: the missing right, the owner of an object.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from monarch.job.kubernetes.access.connection import REQUEST_SECONDS
from monarch.job.kubernetes.access.decoding import decode
from monarch.job.kubernetes.access.failures import JOB_LABEL, Request, refused, status_object
from monarch.job.kubernetes.access.kinds import Kind, parse

if TYPE_CHECKING:
    from threading import Event

    from monarch.job.kubernetes.access.connection import ApiConnection, Response
    from monarch.job.kubernetes.access.watch import Change

Object = dict[str, Any]

MANAGER = "monarch"
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_PAGE = "500"
_READ = 1 << 16
# Bytes of the end of a log that are kept in memory: a container prints lines of any length.
_MOST_LOG = 16 << 20
_UTF8 = codecs.getincrementaldecoder("utf-8")
_NUMBER = re.compile(r"\d+")


class Cluster:
    """Requests of a job in a namespace; `title` is `kubernetes job NAME`, the begin of errors.

    Every request ends within 30 s, and with the surrounding `time_limit`. `ApiError` (a `SubmitError`) is what the server refuses,
    `UnreachableError` no answer, `CredentialsError` one that does not accept who asks.
    """

    def __init__(self, connection: ApiConnection, namespace: str, title: str = "") -> None:
        self.connection = connection
        self.namespace = namespace
        self.title = title

    def apply(self, obj: Object, *, force: bool = False) -> Object:
        """Server-side apply as field manager `monarch`, unknown fields refused; the object as it is then.

        Fields of another field manager stay, and raise an `ApiError` that names it; `force` takes it over.
        """
        kind, name, namespace = self._place(obj)
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": "true" if force else "false"}
        request = Request("patch", kind.resource, name, namespace)
        response = self._send("PATCH", kind.path(namespace, name), query, obj, content_type=_APPLY)
        return self._object(response, request, kind)

    def create(self, obj: Object) -> Object:
        """Makes a new object; `ApiError` with reason "AlreadyExists" where there is one. `generateName` works."""
        kind, name, namespace = self._place(obj)
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        response = self._send("POST", kind.path(namespace), query, obj, is_repeatable=False)
        return self._object(response, Request("create", kind.resource, name, namespace), kind)

    def get(self, kind: str, name: str) -> Object | None:
        """None where there is none."""
        known, namespace = self._known(kind)
        response = self._send("GET", known.path(namespace, name))
        return None if response.status == 404 else self._object(response, Request("get", known.resource, name, namespace), known)

    def list(self, kind: str, selector: str = "", *, fields: str = "") -> tuple[list[Object], str]:
        """The objects, and the resource version of the list; `selector` is of labels, `fields` a field selector."""
        known, namespace = self._known(kind)
        query = {"limit": _PAGE} | {k: v for k, v in (("labelSelector", selector), ("fieldSelector", fields)) if v}
        found: list[Object] = []
        while True:
            response = self._send("GET", known.path(namespace), query)
            if response.status == 410 and "continue" in query:
                # The list is older than what the server keeps.
                del query["continue"]
                found = []
                continue
            page = self._object(response, Request("list", known.resource, "", namespace), known)
            # Items of lists have no kind of their own.
            kinds = {"apiVersion": kind.rpartition("/")[0], "kind": known.name}
            found += [kinds | cast("Object", item) for item in page.get("items") or ()]
            metadata = cast("Object", page.get("metadata") or {})
            if not metadata.get("continue"):
                return found, str(metadata.get("resourceVersion") or "")
            query["continue"] = str(metadata["continue"])

    def delete(self, kind: str, name: str, *, propagation: str = "Background", grace: int | None = None, uid: str | None = None) -> bool:
        """False where there is none (with `uid`: none of this uid). `propagation`: Background, Foreground or Orphan; `grace`: seconds."""
        known, namespace = self._known(kind)
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        response = self._send("DELETE", known.path(namespace, name), None, options)
        if response.status == 404 or (response.status == 409 and uid is not None):
            return False
        self._object(response, Request("delete", known.resource, name, namespace), known)
        return True

    def patch(self, kind: str, name: str, changes: Object, *, subresource: str = "", validation: str = "Strict") -> Object:
        """A JSON merge patch; `validation` "Ignore" drops fields that the server does not know."""
        known, namespace = self._known(kind)
        query = {"fieldManager": MANAGER, "fieldValidation": validation}
        response = self._send("PATCH", known.path(namespace, name, subresource), query, changes, content_type=_MERGE)
        return self._object(response, Request("patch", _sub(known, subresource), name, namespace), known)

    def update(self, obj: Object, *, subresource: str = "") -> Object | None:
        """Replaces it; None where the resource version of `obj` is not the current one."""
        kind, name, namespace = self._place(obj)
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        response = self._send("PUT", kind.path(namespace, name, subresource), query, obj, is_repeatable=False)
        return None if response.status == 409 else self._object(response, Request("update", _sub(kind, subresource), name, namespace), kind)

    def pod_log(
        self, name: str, container: str | None = None, lines: int = 10, *, previous: bool = False, seconds: float = REQUEST_SECONDS
    ) -> str:
        """The last lines, of 16 MiB at most; "" where there are none yet, or no pod. `seconds` bounds the request."""
        # The server's own limit of bytes (`limitBytes`) would keep the first of these lines.
        query = _log_query(container) | {"tailLines": str(lines)} | ({"previous": "true"} if previous else {})
        known, namespace = self._known("v1/Pod")
        response = self._send("GET", known.path(namespace, name, "log"), query, newest=_MOST_LOG, seconds=seconds)
        if response.status in (400, 404):
            # The container has not started, or its log is gone.
            return ""
        if response.status >= 300:
            raise self._refused(Request("get", "pods/log", name, namespace), response)
        begin = response.data.find(b"\n") + 1 if len(response.data) == _MOST_LOG else 0
        # Half a character at the end comes with the next read.
        return _UTF8("replace").decode(response.data[begin:])

    def follow_log(self, name: str, container: str | None = None) -> Iterator[bytes]:
        """The output as it comes, from its start to its end."""
        known, namespace = self._known("v1/Pod")
        query = _log_query(container) | {"follow": "true"}
        with self.connection.stream("GET", known.path(namespace, name, "log"), query, silence=86400.0) as incoming:
            if incoming.answer.status >= 300:
                raise refused(self.title, Request("get", "pods/log", name, namespace), incoming.answer.status, incoming.answer.read(_READ))
            while part := incoming.answer.read1(_READ):
                yield part

    def events(self, name: str, kind: str = "Pod") -> list[Object]:
        """Of an object, oldest first."""
        found, _ = self.list("v1/Event", fields=f"involvedObject.name={name},involvedObject.kind={kind}")
        return sorted(found, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or one.get("firstTimestamp") or ""))

    def can_i(self, verb: str, resource: str) -> bool:
        """May this client do so? `resource`: `pods`, `pods/log`, `jobs.batch`, `statefulsets.apps/scale`."""
        name, _, subresource = resource.partition("/")
        name, _, group = name.partition(".")
        attributes = {"verb": verb, "group": group, "resource": name, "subresource": subresource, "namespace": self.namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        known = parse("authorization.k8s.io/v1/SelfSubjectAccessReview")
        answer = self._object(self._send("POST", known.path(""), None, review), Request("create", known.resource), known)
        return bool(cast("Object", answer.get("status") or {}).get("allowed"))

    def server_version(self) -> tuple[int, int]:
        """Major, minor."""
        response = self._send("GET", "/version")
        if response.status >= 300:
            raise self._refused(Request("get", "/version"), response)
        found = cast("Object", json.loads(response.data))
        # Some providers have "28+" as the minor version.
        numbers = [_NUMBER.match(str(found.get(key) or "")) for key in ("major", "minor")]
        return (int(numbers[0][0]) if numbers[0] else 0, int(numbers[1][0]) if numbers[1] else 0)

    def get_path(self, path: str) -> tuple[int, bytes]:
        """Code and text of any path of the server."""
        return self._send("GET", path)

    def watch(
        self, kind: str, selector: str = "", *, timeout: float | None = None, fields: str = "", stop: Event | None = None
    ) -> Iterator[Change]:
        """Lists, then reports changes until `stop` is set, or for `timeout` seconds; lists again after each gap.

        `stop` is looked at between two changes, and ends a wait for a server that is away.

        Gaps are a resource version that the server has no longer, and a cut that took longer; a cut alone goes on where it was.
        """
        from monarch.job.kubernetes.access.watch import changes

        return changes(self, kind, selector, fields, timeout, stop)

    def _known(self, kind: str) -> tuple[Kind, str]:
        known = parse(kind)
        return known, self.namespace if known.is_namespaced else ""

    def _place(self, obj: Object) -> tuple[Kind, str, str]:
        known, namespace = self._known(f"{obj.get('apiVersion')}/{obj.get('kind')}")
        metadata = cast("Object", obj.get("metadata") or {})
        return known, str(metadata.get("name") or ""), str(metadata.get("namespace") or namespace) if known.is_namespaced else ""

    def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        is_repeatable: bool = True,
        newest: int | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Response:
        data = None if body is None else json.dumps(body).encode()
        return self.connection.request(
            method, path, query, data, content_type=content_type, seconds=seconds, is_repeatable=is_repeatable, newest=newest
        )

    def _object(self, response: Response, request: Request, kind: Kind) -> Object:
        if response.status >= 300:
            raise self._refused(request, response, kind)
        try:
            found: object = decode(response.data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise refused(self.title, request, response.status, b"the answer is no JSON object: is this an API server?")
        return cast("Object", found)

    def _refused(self, request: Request, response: Response, kind: Kind | None = None) -> Exception:
        owner = ""
        if kind is not None and response.status == 409 and request.name and status_object(response.data).get("details"):
            # The owner is more helpful than its field managers; without the right to read it stays unknown.
            seen = self._send("GET", kind.path(request.namespace, request.name))
            if seen.status == 200:
                metadata = cast("Object", decode(seen.data).get("metadata") or {})
                owner = str(cast("Object", metadata.get("labels") or {}).get(JOB_LABEL) or "")
        return refused(self.title, request, response.status, response.data, owner=owner)


def _sub(kind: Kind, subresource: str) -> str:
    return f"{kind.resource}/{subresource}" if subresource else kind.resource


def _log_query(container: str | None) -> dict[str, str]:
    return {} if container is None else {"container": container}
