"""Contexts that move to another machine: state file and credentials, sealed under a passphrase.

The key comes from the passphrase by scrypt, whose cost makes guessing slow. The content is encrypted with the key stream that keyed BLAKE2b
gives for a counter, then authenticated with keyed BLAKE2b under another key: encrypt-then-MAC of a pseudo-random function in counter mode,
all from the standard library. Changed bytes, and bytes sealed under another passphrase, are refused before anything is decrypted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from typing import Any

from monarch.job._files import contexts, credentials, state_file
from monarch.job.errors import JobError


def export(name: str, passphrase: str) -> bytes:
    """The context's state file and spec with all credentials. Its job's class need not be imported."""
    state = state_file.read(contexts.state_path(name))
    apply_id = state_file.apply_id_of(state, name)
    files: dict[str, str] = {}
    if apply_id is not None:
        files = {file: base64.b64encode(data).decode() for file, data in credentials.contents(apply_id).items()}
    content = {"context": name, "spec": contexts.spec(name), "state": state.decode(), "credentials": files}
    return seal(json.dumps(content).encode(), passphrase)


def restore(data: bytes, passphrase: str, name: str | None) -> str:
    """Makes the context here, under its own name or another, and switches to it; gives the name. Nothing that is here is replaced."""
    try:
        content: dict[str, Any] = json.loads(unseal(data, passphrase))
    except ValueError as e:
        raise JobError(str(e)) from None
    context = name or str(content["context"])
    state = str(content["state"]).encode()
    apply_id = state_file.apply_id_of(state, "the exported state")
    contexts.create(context)
    try:
        if apply_id is not None and content["credentials"]:
            credentials.restore(apply_id, {file: base64.b64decode(text) for file, text in content["credentials"].items()})
        state_file.replace(contexts.state_path(context), state)
    except BaseException:
        contexts.remove(context)
        raise
    contexts.use(context)
    if content["spec"] is not None:
        contexts.set_spec(content["spec"])
    return context


MAGIC = b"monarch sealed 1\n"
_SALT, _TAG, _BLOCK = 16, 32, 64
# A guess takes 64 MiB and a good part of a second.
_SCRYPT = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 1 << 27}


class WrongPassphrase(ValueError):
    """The passphrase is another one, or the bytes were changed; the two cannot be distinguished."""


def seal(data: bytes, passphrase: str) -> bytes:
    salt = os.urandom(_SALT)
    cipher_key, tag_key = _keys(passphrase, salt)
    body = MAGIC + salt + _xor(data, cipher_key)
    return body + _tag(body, tag_key)


def unseal(sealed: bytes, passphrase: str) -> bytes:
    """`WrongPassphrase`, or `ValueError` for what was never sealed."""
    start = len(MAGIC) + _SALT
    if not sealed.startswith(MAGIC) or len(sealed) < start + _TAG:
        raise ValueError("these are no exported credentials")
    body, tag = sealed[:-_TAG], sealed[-_TAG:]
    cipher_key, tag_key = _keys(passphrase, body[len(MAGIC) : start])
    if not hmac.compare_digest(tag, _tag(body, tag_key)):
        raise WrongPassphrase("the passphrase is wrong, or the file was changed")
    return _xor(body[start:], cipher_key)


def _keys(passphrase: str, salt: bytes) -> tuple[bytes, bytes]:
    key = hashlib.scrypt(passphrase.encode(), salt=salt, dklen=64, **_SCRYPT)
    return key[:32], key[32:]


def _xor(data: bytes, key: bytes) -> bytes:
    blocks = range(-(-len(data) // _BLOCK))
    stream = b"".join(hashlib.blake2b(n.to_bytes(8, "little"), key=key, person=b"stream").digest() for n in blocks)[: len(data)]
    return (int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")).to_bytes(len(data), "little")


def _tag(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=_TAG, person=b"tag").digest()
