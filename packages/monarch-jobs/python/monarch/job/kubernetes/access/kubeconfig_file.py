"""Kubeconfig files: which ones there are, how several are merged, and the cluster and user of a context.

`KUBECONFIG` names several files: the first that has an entry of a name, or a current context, counts. Paths in a file are relative to its
folder. https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/

Ours: the official client leaves out `proxy-url`, and its errors name neither line nor entry.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

from monarch.job.errors import CredentialsError

DEFAULT = "~/.kube/config"


class Entry(NamedTuple):
    """A named part of a kubeconfig; `path` is the file that it comes from."""

    name: str
    value: dict[str, Any]
    path: str

    def text(self, key: str) -> str:
        """The value of a key, "" without one."""
        return str(self.value.get(key) or "")

    def file(self, key: str) -> str:
        """The absolute path of a key that has one."""
        found = self.text(key)
        return os.path.join(os.path.dirname(self.path), os.path.expanduser(found)) if found else ""

    def bytes(self, key: str) -> bytes | None:
        """The content of `<key>-data`, or of the file that `<key>` names. `CredentialsError` for a file that cannot be read."""
        inline = self.text(f"{key}-data")
        if inline:
            try:
                # Tools break the text into lines.
                return base64.b64decode("".join(inline.split()), validate=True)
            except ValueError:
                raise CredentialsError(f"{key}-data of '{self.name}' is not base64", path=self.path) from None
        path = self.file(key)
        return read_file(path, f"{key} of '{self.name}' in {self.path}") if path else None


class Selected(NamedTuple):
    """What a context names; `source` is the file of the context, for errors."""

    context: str
    source: str
    cluster: Entry
    user: Entry
    namespace: str | None


def read_file(path: str, what: str) -> bytes:
    """`CredentialsError` with `what` where the file cannot be read."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as e:
        raise CredentialsError(f"{what} cannot be read", path=path, cause=os.strerror(e.errno or 0)) from None


def default_paths() -> list[str]:
    """The files of `KUBECONFIG`, or the one in the home folder."""
    named = [os.path.abspath(os.path.expanduser(path)) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return named or [os.path.expanduser(DEFAULT)]


def select(paths: Sequence[str], context: str | None = None) -> Selected:
    """The context of this name, or the current one. `CredentialsError` names the file, and the contexts that there are."""
    present = [path for path in paths if os.path.exists(path)] if len(paths) > 1 else list(paths)
    if not present:
        _fail(os.pathsep.join(paths), "none of these kubeconfigs exists")
    contexts: dict[str, Entry] = {}
    clusters: dict[str, Entry] = {}
    users: dict[str, Entry] = {}
    current = context or ""
    for path in present:
        found = _document(path)
        for part, key, known in (("contexts", "context", contexts), ("clusters", "cluster", clusters), ("users", "user", users)):
            for entry in _entries(found, part, key, path):
                known.setdefault(entry.name, entry)
        current = current or str(found.get("current-context") or "")
    source = os.pathsep.join(present)
    names = ", ".join(sorted(contexts)) or "none"
    if not current:
        _fail(source, "no current context is set", f"there are: {names}", "`kubectl config use-context NAME`, or name one")
    if current not in contexts:
        _fail(source, f"there is no context '{current}'", f"there are: {names}")
    chosen = contexts[current]
    cluster, user = chosen.text("cluster"), chosen.text("user")
    if cluster not in clusters:
        _fail(chosen.path, f"the context '{current}' names the cluster '{cluster}', which is not there")
    if user and user not in users:
        _fail(chosen.path, f"the context '{current}' names the user '{user}', who is not there")
    return Selected(current, chosen.path, clusters[cluster], users.get(user, Entry("", {}, chosen.path)), chosen.text("namespace") or None)


def _document(path: str) -> dict[str, Any]:
    text = read_file(path, "the kubeconfig")
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found: object = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        # The error quotes the line, which may have a secret: only its position is shown.
        mark = getattr(e, "problem_mark", None)
        _fail(path, "the kubeconfig is not YAML", f"line {mark.line + 1}" if mark is not None else "")
    if found is None:
        found = {}
    if not isinstance(found, dict):
        _fail(path, "the kubeconfig is not a mapping")
    return cast("dict[str, Any]", found)


def _entries(found: Mapping[str, Any], part: str, key: str, path: str) -> list[Entry]:
    rows: object = found.get(part) or []
    if not isinstance(rows, list):
        _fail(path, f"{part} of the kubeconfig is not a list")
    made: list[Entry] = []
    for number, row in enumerate(cast("list[object]", rows)):
        given = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
        value: object = given.get(key) or {}
        if not given.get("name") or not isinstance(value, dict):
            _fail(path, f"{part}[{number}] of the kubeconfig has no name, or its {key} is not a mapping")
        made.append(Entry(str(given["name"]), cast("dict[str, Any]", value), path))
    return made


def _fail(path: str, what: str, cause: str = "", hint: str | None = None) -> NoReturn:
    raise CredentialsError(what, path=path, cause=cause, hint=hint)
