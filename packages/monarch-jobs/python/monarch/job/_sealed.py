"""Bytes under a passphrase, for credentials that travel between machines.

The key comes from the passphrase by scrypt, whose cost makes guessing slow. Encrypted with the key stream that keyed BLAKE2b gives for a
counter, then authenticated with keyed BLAKE2b under another key: encrypt-then-MAC of a pseudo-random function in counter mode, all from
the standard library. What was changed, or sealed under another passphrase, is refused before anything is decrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os

MAGIC = b"monarch sealed 1\n"
_SALT, _TAG, _BLOCK = 16, 32, 64
# 64 MiB and a good part of a second per guess.
_SCRYPT = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 1 << 27}


class WrongPassphrase(ValueError):
    """The passphrase is another one, or the bytes were changed; which cannot be told apart."""


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
