"""Contexts that move to another machine: state file and credentials, sealed under a passphrase."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from monarch.job import _contexts, _credentials, _sealed, _store
from monarch.job.errors import JobError


def export(name: str, passphrase: str) -> bytes:
    """The context's state file and spec with all credentials. Its job's class need not be imported."""
    state = _store.read(_contexts.state_path(name))
    apply_id = _store.apply_id_of(state, name)
    files: dict[str, str] = {}
    if apply_id is not None:
        folder = _credentials.directory(apply_id)
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            files[file] = base64.b64encode(_credentials.read_private(os.path.join(folder, file))).decode()
    content = {"context": name, "spec": _contexts.spec(name), "state": state.decode(), "credentials": files}
    return _sealed.seal(json.dumps(content).encode(), passphrase)


def restore(data: bytes, passphrase: str, name: str | None) -> str:
    """Makes the context here, under its own name or another, and switches to it; gives the name. Nothing that is here is replaced."""
    try:
        content: dict[str, Any] = json.loads(_sealed.unseal(data, passphrase))
    except ValueError as e:
        raise JobError(str(e)) from None
    context = name or str(content["context"])
    state = str(content["state"]).encode()
    apply_id = _store.apply_id_of(state, "the exported state")
    _contexts.create(context)
    try:
        if apply_id is not None and content["credentials"]:
            _credentials.restore(apply_id, {file: base64.b64decode(text) for file, text in content["credentials"].items()})
        _store.replace(_contexts.state_path(context), state)
    except BaseException:
        _contexts.remove(context)
        raise
    _contexts.use(context)
    if content["spec"] is not None:
        _contexts.set_spec(content["spec"])
    return context
