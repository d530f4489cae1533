"""Answers of an API server that are no success, as errors of jobs: which right is missing, which field is wrong, what is not reachable.

The texts have what the server reports, and never what was sent: bodies and headers of requests have secrets.

Ours: the official client has one error for all codes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from monarch.job.errors import CredentialsError, JobError, SubmitError

JOB_LABEL = "monarch.pytorch.org/job"
# The server's text for a missing right; a websocket has no text. Quotas and admission have the reason Forbidden as well.
_NO_RIGHT = re.compile(r"is forbidden:\s*$|\bcannot \S+ resource\b|\bcannot impersonate\b|attempting to grant RBAC permissions")
_DENIED = re.compile(r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"')
# A field of an applied object that the schema lacks. The server has only this text for it, with the code of its own failures.
_UNDECLARED = re.compile(r"(\.\S+): field not declared in schema")
_MANAGER = re.compile(r'conflict with "(?P<manager>[^"]*)"')
_TAKE_OVER = "monarch k8s install --print | kubectl apply --server-side --force-conflicts --field-manager=monarch -f -"


class ApiError(SubmitError):
    """The API server refused a request: `status` is the HTTP code, `reason` the server's word for it, as "Forbidden" or "Conflict"."""

    def __init__(self, what: str, *, title: str = "", cause: str = "", hint: str | None = None, status: int = 0, reason: str = "") -> None:
        super().__init__(what, title=title, cause=cause, hint=hint)
        self.status = status
        self.reason = reason


class UnreachableError(JobError):
    """The API server did not answer: refused, cut off, not resolved, no valid certificate, or too slow; `server` is its URL.

    `has_timed_out` is true if the time of the request has passed without an answer.
    """

    def __init__(
        self, what: str, *, server: str, title: str = "", cause: str = "", hint: str | None = None, has_timed_out: bool = False
    ) -> None:
        super().__init__(what, title=title, cause=cause, hint=hint)
        self.server = server
        self.has_timed_out = has_timed_out


class Request(NamedTuple):
    """What a request was for, in the words of RBAC: `resource` is `pods/log`, or `jobs.batch`."""

    verb: str
    resource: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f' {self.name!r}' if self.name else ''}{self.where()}"

    def where(self) -> str:
        """The place, as the end of a sentence."""
        return f" in namespace '{self.namespace}'" if self.namespace else ""


def status_object(data: bytes) -> dict[str, Any]:
    """The `Status` of an answer; one made of the text where a proxy, and no API server, has answered."""
    try:
        found: object = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict) and cast("dict[str, Any]", found).get("kind") == "Status":
        return cast("dict[str, Any]", found)
    return {"message": data[:500].decode(errors="replace").strip()}


def unknown_fields(code: int, data: bytes) -> list[str]:
    """The fields of an applied object that the cluster's schema lacks, from an answer of the API server; empty for other answers.

    The answer has the code 500, as that of a failed database, and neither `reason` nor `causes`: only its text has the fields.
    """
    return _UNDECLARED.findall(str(status_object(data).get("message"))) if code == 500 else []


def refused(title: str, request: Request, code: int, data: bytes, *, owner: str = "") -> ApiError:
    """The error for an answer with this HTTP code; `owner` is the job that has the object, where that is known."""
    status = status_object(data)
    reason = str(status.get("reason") or code)
    message = str(status.get("message") or f"HTTP {code}")
    details = cast("dict[str, Any]", status.get("details") or {})
    causes = cast("Sequence[dict[str, Any]]", details.get("causes") or ())
    what, hint, cause = f"the cluster refused to {request}", None, message
    if code == 403 and _NO_RIGHT.search(message):
        # Applying needs the right to patch, and for a new object the right to create: the server names the missing one.
        if denied := _DENIED.search(message):
            base, slash, sub = denied["resource"].partition("/")
            resource = (f"{base}.{denied['group']}" if denied["group"] else base) + slash + sub
            request = request._replace(verb=denied["verb"], resource=resource)
        what = f"no right to {request.verb} {request.resource}{request.where()}"
        place = f" --namespace {request.namespace}" if request.namespace else ""
        hint = f"`monarch k8s rbac{place}` grants what a client needs, `monarch k8s install --operator` what the operator needs"
    elif code == 409 and reason == "Conflict" and causes:
        managers = sorted({found["manager"] for one in causes if (found := _MANAGER.search(str(one.get("message"))))})
        named = ", ".join(f"'{name}'" for name in managers) or "another field manager"
        what = f"{_object(request)} is managed by {named}{f' for the job {owner}' if owner else ''}"
        cause = "\n".join(str(one.get("field") or one.get("message")) for one in causes)
        hint = "another name, or its deletion, makes room for this job"
        if request.resource.startswith("customresourcedefinitions."):
            # Its deletion would remove every object of the kind.
            hint = f"leave it with {named} (`helm upgrade` for a chart), or take it over: `{_TAKE_OVER}`"
    elif code == 409 and reason == "AlreadyExists":
        what = f"{_object(request)} exists{f' for the job {owner}' if owner else ''}"
    elif code == 404 and not details.get("name"):
        what = f"the cluster has no {request.resource}"
        group = request.resource.partition("/")[0].partition(".")[2]
        hint = f"install what provides {group}" if group else None
        if group == "monarch.pytorch.org":
            hint = "`monarch k8s install --operator` makes them known"
    elif code == 404 and details.get("kind") == "namespaces":
        what = f"there is no namespace '{details.get('name')}'"
        hint = f"`kubectl create namespace {details.get('name')}`"
    elif code == 404:
        what = f"there is no {request.resource.partition('/')[0]} '{details['name']}'{request.where()}"
    elif code in (400, 422):
        what = f"{_object(request)} is not valid"
        cause = "\n".join(f"{one.get('field')}: {one.get('message')}" for one in causes) or message
    elif fields := unknown_fields(code, data):
        # With the code for fields of a wrong value.
        what, code = f"{_object(request)} is not valid", 422
        cause = "\n".join(f"{field}: unknown field" for field in fields)
    return ApiError(what, title=title, cause=cause, hint=hint, status=code, reason=reason)


def _object(request: Request) -> str:
    return f"{request.resource}{f' {request.name!r}' if request.name else ''}{request.where()}"


def not_accepted(source: str, server: str, data: bytes, expiry: str) -> CredentialsError:
    """The API server does not know who asks (401); `expiry` names a credential that has ended."""
    what = f"the API server {server} does not accept the credentials"
    message = str(status_object(data).get("message") or "")
    return CredentialsError(what, path=source, cause="\n".join(filter(None, (expiry, message))), hint="log in again, then run this again")
