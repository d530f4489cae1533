"""TLS to an API server. Keys that a kubeconfig has inline get into OpenSSL by memory that has no name in any file system.

Ours: the official client takes certificates and keys as files only. `not_after` reads one field of a certificate; the library for that,
cryptography, is 4 MB of native code.
"""

from __future__ import annotations

import base64
import calendar
import os
import re
import ssl
import time

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _EXPLICIT_0, _UTC_TIME = 0x30, 0xA0, 0x17


def context(*, authority: bytes | None, is_verified: bool, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
    """`authority` are the certificates that vouch for the server (PEM; None: those of the machine). `ValueError` for what is no PEM."""
    # Comments have any characters, `cadata` has ASCII. No characters are dropped: an empty text selects the machine's certificates.
    made = ssl.create_default_context(cadata=authority.decode("ascii", errors="backslashreplace") if authority is not None else None)
    if hasattr(ssl, "VERIFY_X509_STRICT"):
        # Python 3.13 requires key usages that the authorities of many clusters lack.
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not is_verified:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate is not None and key is not None:
        _load(made, certificate, key)
    made.set_alpn_protocols(["http/1.1"])
    return made


def _load(made: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """`load_cert_chain` takes paths: that of a descriptor without a file is one."""
    descriptor = os.memfd_create("monarch-kube", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as f:
            f.write(certificate.rstrip() + b"\n" + key)
        made.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)
    finally:
        os.close(descriptor)


def _no_password() -> bytes:
    # Without this error OpenSSL would ask at the terminal.
    raise ValueError("the key is encrypted with a passphrase")


def not_after(certificate: bytes) -> float | None:
    """The end of the first certificate of a PEM text, in seconds since 1970; None where it cannot be read."""
    found = _CERTIFICATE.search(certificate)
    if found is None:
        return None
    try:
        # Certificate > TBSCertificate > [version], serial, algorithm, issuer, validity (RFC 5280, 4.1)
        rest = _inner(_inner(base64.b64decode(found[1]))[1])[1]
        tag, content, after = _field(rest)
        if tag == _EXPLICIT_0:
            tag, content, after = _field(after)
        for _ in range(3):
            tag, content, after = _field(after)
        _, _, after = _field(content)
        tag, content, _ = _field(after)
        return float(calendar.timegm(_parsed(tag, content.decode("ascii"))))
    except (ValueError, IndexError):
        return None


def _parsed(tag: int, text: str) -> time.struct_time:
    year = ("19" if text[0] >= "5" else "20") + text[:2] if tag == _UTC_TIME else text[:4]
    rest = text[2:] if tag == _UTC_TIME else text[4:]
    return time.strptime(year + rest[:10], "%Y%m%d%H%M%S")


def _inner(data: bytes) -> tuple[int, bytes]:
    tag, content, _ = _field(data)
    if tag != _SEQUENCE:
        raise ValueError("no sequence")
    return tag, content


def _field(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag, content and what follows, of DER."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start = 2 + (length & 0x7F)
        length = int.from_bytes(data[2:start], "big")
    return tag, data[start : start + length], data[start + length :]
