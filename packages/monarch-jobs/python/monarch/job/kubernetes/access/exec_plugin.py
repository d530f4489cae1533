"""Exec plugins of kubeconfigs (`aws eks get-token`, `gke-gcloud-auth-plugin` and the like): programs whose output is a credential.

https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins describes the protocol. The output is a
secret, and in no error. The program has no terminal: one that asks questions fails instead of waiting for an answer that never comes.

Ours: the official client waits for a plugin without a limit, gives it the terminal, and shows its output.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, cast

from monarch.job._machine.commands import time_left
from monarch.job.errors import CredentialsError
from monarch.job.kubernetes.access.child_process import end_group

TIMEOUT_S = 60.0
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
# Words that look like a token: long ones without spaces.
_SECRET = re.compile(r"[A-Za-z0-9_\-+/=.]{24,}")
_MOST_LINES = 10


class Answer(NamedTuple):
    """What a plugin gave; `expires` in seconds since 1970, None: with this process."""

    token: str | None
    certificate: bytes | None
    key: bytes | None
    expires: float | None


def masked(text: str) -> str:
    """The last lines, without what may be a secret."""
    return "\n".join(_SECRET.sub("***", line) for line in text.strip().splitlines()[-_MOST_LINES:])


class ExecPlugin:
    """The `exec` of a user; `source` is the file that has it, `folder` its folder, `cluster` what the plugin gets to know of it."""

    def __init__(self, given: Mapping[str, Any], source: str, folder: str, cluster: Mapping[str, Any]) -> None:
        self._source = source
        self._version = str(given.get("apiVersion") or "")
        command = str(given.get("command") or "")
        # The rule of other paths of a kubeconfig: a name is looked up on PATH, a relative path from the folder of the file.
        self._command = os.path.join(folder, command) if "/" in command else command
        self._arguments = [str(one) for one in given.get("args") or ()]
        self._environment = {str(one["name"]): str(one.get("value") or "") for one in given.get("env") or ()}
        self._hint = str(given.get("installHint") or "").strip()
        self._cluster = dict(cluster) if given.get("provideClusterInfo") else None
        if not command:
            self._fail("an exec plugin has no command")
        if self._version not in _VERSIONS:
            self._fail(f"the exec plugin '{command}' has the apiVersion '{self._version}'", f"known are {', '.join(_VERSIONS)}")
        if given.get("interactiveMode") == "Always":
            self._fail(f"the exec plugin '{command}' asks questions at the terminal", hint="log in by it first, or use another context")

    def run(self) -> Answer:
        """Runs it. `CredentialsError` where it is missing, fails, takes more than 60 s, or has no credential in its output."""
        info: dict[str, Any] = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        if self._cluster is not None:
            info["spec"]["cluster"] = self._cluster
        environment = {**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        limit = time_left(TIMEOUT_S)
        try:
            # A session of its own has no terminal.
            process = subprocess.Popen(
                [self._command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as e:
            self._fail(f"the exec plugin '{self._command}' cannot be started", os.strerror(e.errno or 0), self._hint or None)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end_group(process)
            self._fail(f"the exec plugin '{self._command}' gave no answer within {limit:.0f} s")
        except BaseException:
            end_group(process)
            raise
        if process.returncode:
            self._fail(f"the exec plugin '{self._command}' failed with {_how(process.returncode)}", masked(err.decode(errors="replace")))
        return self._read(out)

    def _read(self, out: bytes) -> Answer:
        # JSON is YAML too, but not all of it; the faster parser comes first.
        found: object
        try:
            found = json.loads(out)
        except ValueError:
            import yaml

            try:
                found = yaml.safe_load(out)
            except (yaml.YAMLError, UnicodeDecodeError):
                found = None
        if not isinstance(found, dict):
            self._fail(f"the output of the exec plugin '{self._command}' is neither JSON nor YAML of an ExecCredential")
        answer = cast("dict[str, Any]", found)
        if answer.get("kind") != "ExecCredential" or answer.get("apiVersion") != self._version:
            self._fail(f"the output of the exec plugin '{self._command}' is no ExecCredential of {self._version}")
        status: object = answer.get("status")
        if not isinstance(status, dict):
            self._fail(f"the output of the exec plugin '{self._command}' has no status")
        given = cast("dict[str, Any]", status)
        token, certificate, key = (given.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
        if (certificate is None) != (key is None):
            self._fail(f"the exec plugin '{self._command}' gave a certificate without a key, or a key without a certificate")
        if not token and not certificate:
            self._fail(f"the exec plugin '{self._command}' gave neither a token nor a certificate")
        return Answer(
            str(token) if token else None,
            str(certificate).encode() if certificate else None,
            str(key).encode() if key else None,
            self._moment(given.get("expirationTimestamp")),
        )

    def _moment(self, given: object) -> float | None:
        if given is None:
            return None
        try:
            # YAML converts a text that looks like a time.
            moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
        except ValueError:
            self._fail(f"the exec plugin '{self._command}' gave an expirationTimestamp that is no time")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def _fail(self, what: str, cause: str = "", hint: str | None = None) -> NoReturn:
        raise CredentialsError(what, path=self._source, cause=cause, hint=hint)


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {-code}"


def is_over(expires: float | None, margin: float = 30.0) -> bool:
    """Is this moment past, or less than `margin` seconds away?"""
    return expires is not None and expires - margin <= time.time()
