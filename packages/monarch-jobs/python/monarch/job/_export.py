"""Contexts that move to another machine: state file and credentials, sealed under a passphrase."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from monarch.job import _contexts, _credentials, _sealed, _store
from monarch.job.errors import JobError


def export(name: str, passphrase: str) -> bytes:
    """The context's job with all its credentials."""
    job = _store.load(_contexts.state_path(name))
    apply_id = job.apply_id
    files: dict[str, str] = {}
    if apply_id is not None:
        folder = _credentials.directory(apply_id)
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            files[file] = base64.b64encode(_credentials.read_private(os.path.join(folder, file))).decode()
    content = {"context": name, "apply_id": apply_id, "state": job.dumps().decode(), "credentials": files}
    return _sealed.seal(json.dumps(content).encode(), passphrase)


def restore(data: bytes, passphrase: str, name: str | None) -> str:
    """Makes the context here, under its own name or another; gives the name. Nothing that is here is replaced."""
    try:
        content: dict[str, Any] = json.loads(_sealed.unseal(data, passphrase))
    except ValueError as e:
        raise JobError(str(e)) from None
    context = name or str(content["context"])
    job = _store.decode(content["state"].encode(), "the exported state")
    if job.apply_id != content["apply_id"]:
        raise JobError("the exported credentials are of another job")
    _contexts.create(context)
    try:
        if job.apply_id is not None and content["credentials"]:
            _credentials.restore(job.apply_id, {file: base64.b64decode(text) for file, text in content["credentials"].items()})
        _store.write(_contexts.state_path(context), job)
    except BaseException:
        _contexts.remove(context)
        raise
    return context
