"""The credentials by which clients and agents of other hosts authenticate each other."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.config.address import ChannelAddr

# The value that torchmonarch 0.7 required as `ca`.
TRUST_ALL = "trust_all_connections"
SECRET_VARIABLE = "MONARCH_JOB_SECRET_FILE"
# The setting `trust_all`, with which programs and manifests that were written for 0.7 run unchanged.
TRUST_ALL_VARIABLE = "MONARCH_TRUST_ALL"
_LONGEST_SECRET = 4096
# Bytes of a secret that launchers write: random bytes, of which the first or the last may look like white space.
_RAW_SECRET = 32
_INHERITED = "/dev/fd/"


class Trust:
    """The checked credentials of one address. `kind` is `secret`, `site`, `insecure` or `user`; native code reads the other fields."""

    __slots__ = ("ca", "key", "kind", "secret")

    def __init__(self, kind: str, secret: bytes = b"", key: bytes = b"", ca: bytes = b"") -> None:
        self.kind = kind
        self.secret = secret
        self.key = key
        self.ca = ca

    def fields(self) -> tuple[object, ...]:
        return (self.kind, self.secret, self.key, self.ca)

    def __repr__(self) -> str:
        return f"<Trust {self.kind}>"


class Given:
    """The credentials that a user gave: checked once, then matched with each address."""

    def __init__(
        self, secret: bytes | str | os.PathLike[str] | None, private_key: bytes | str | None, ca: bytes | str | None, insecure: bool
    ) -> None:
        self.insecure = bool(insecure)
        self.trust_all = ca == TRUST_ALL
        if self.trust_all:
            import warnings

            warnings.warn(f"ca={TRUST_ALL!r} is not needed any more: use secret= or insecure=True", DeprecationWarning, stacklevel=4)
            ca = None
        from monarch._core.config import config

        private_key = private_key or config.value("tls_key") or None
        ca = ca or config.value("tls_ca") or None
        if (private_key is None) != (ca is None):
            raise ValueError("private_key= and ca= belong together: give both, or neither")
        self._site = None if private_key is None else (_pem(private_key, "private_key", config.value("tls_cert")), _pem(ca, "ca"))
        if secret is None and os.environ.get(SECRET_VARIABLE):
            secret = os.environ[SECRET_VARIABLE]
        self._secret = None if secret is None else read_secret(secret)

    def is_as(self, other: Given, address: str) -> bool:
        """Whether both give the same credentials for this address. Different credentials need a new check."""
        from monarch._core.config.address import ChannelAddr

        place = ChannelAddr.parse(address)
        return self.of(place).fields() == other.of(place).fields()

    def of(self, address: ChannelAddr) -> Trust:
        """The credentials for one address; `ValueError` if the address needs credentials that were not given."""
        if address.scheme in ("unix", "local"):
            return Trust("user")
        if self._secret is not None:
            return Trust("secret", secret=self._secret)
        if self._site is not None:
            return Trust("site", key=self._site[0], ca=self._site[1])
        from monarch._core.config import config

        everywhere = bool(config.value("trust_all"))
        if self.insecure or everywhere or (self.trust_all and address.loopback):
            if self.insecure or everywhere:
                import warnings

                why = "" if self.insecure else f" because {TRUST_ALL_VARIABLE} is set"
                warnings.warn(f"{address.url} is used without encryption{why}: who can reach it can run code", UserWarning, stacklevel=4)
            return Trust("insecure")
        as_before = f"; {TRUST_ALL_VARIABLE}=1 at both ends, in such a network, accepts ca={TRUST_ALL!r}" if self.trust_all else ""
        raise ValueError(
            f"{address.url} needs one of: secret= (or {SECRET_VARIABLE}), private_key= with ca=, or insecure=True for a network "
            f"where everybody may run code{as_before}"
        )


def read_secret(secret: bytes | str | os.PathLike[str]) -> bytes:
    """The secret itself, or the contents of a file that only its owner may read. `ValueError` names the file and its problem.

    A file that root owns may be readable by a group of this process, as a volume of Kubernetes with an `fsGroup` makes it. In a Secret
    volume,
    to which only its container has access, it may be readable by all.
    """
    if isinstance(secret, bytes | bytearray):
        if len(secret) < 16:
            raise ValueError(f"a secret of {len(secret)} bytes is too short: 16 at least, better 32 random ones")
        return bytes(secret)
    import stat

    path = os.fspath(secret)
    # An inherited pipe comes from the process that started this one, which writes it. Any process may open a named pipe, so the read does
    # not wait for one.
    inherited = path.startswith(_INHERITED)
    try:
        with open(path, "rb", opener=None if inherited else _without_waiting) as f:
            found = os.fstat(f.fileno())
            if not stat.S_ISREG(found.st_mode) and not (inherited and stat.S_ISFIFO(found.st_mode)):
                raise ValueError(f"secret file {path}: not a file")
            body = f.read(_LONGEST_SECRET + 1)
        if inherited and stat.S_ISFIFO(found.st_mode):
            # Processes started here must not inherit the secret.
            os.close(int(path.removeprefix(_INHERITED)))
    except OSError as e:
        raise ValueError(f"secret file {path}: {(e.strerror or str(e)).lower()}") from None
    if found.st_uid not in (os.getuid(), 0):
        raise ValueError(f"secret file {path}: belongs to another user")
    if found.st_mode & 0o077 & ~_shared_bits(path, found):
        raise ValueError(f"secret file {path}: others may read it, chmod 600 it")
    if len(body) != _RAW_SECRET:
        body = body.strip()
    if len(body) > _LONGEST_SECRET:
        raise ValueError(f"secret file {path}: longer than {_LONGEST_SECRET} bytes")
    if len(body) < 16:
        raise ValueError(f"secret file {path}: a secret of {len(body)} bytes is too short, 16 at least")
    return body


def _shared_bits(path: str, found: os.stat_result) -> int:
    """The read permissions that a secret file may have for users other than the owner."""
    if found.st_uid != 0:
        return 0
    # A read-only file system of the kubelet. A link, which the kubelet replaces in one step, leads to the files.
    is_volume = os.path.islink(os.path.join(os.path.dirname(path), "..data")) and bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return 0o044 if is_volume else 0o040 if os.getuid() != 0 else 0


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _pem(value: bytes | str | None, name: str, chain: str = "") -> bytes:
    """The PEM data: bytes unchanged, or the content of a file. A key may have its chain in a separate file."""
    if isinstance(value, bytes):
        return value
    if value and value.lstrip().startswith("-----BEGIN"):
        return value.encode()
    body = b""
    for path in filter(None, (value, chain)):
        try:
            with open(path, "rb") as f:
                body += f.read() + b"\n"
        except OSError as e:
            raise ValueError(f"{name} {path}: {(e.strerror or str(e)).lower()}") from None
    return body
