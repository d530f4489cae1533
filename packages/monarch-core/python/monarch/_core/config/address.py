"""Where agents listen and how they are dialled: transports, addresses and bind specifications.

An address is only parsed here. Names are not resolved, nothing is bound and no file is touched, so that an address means the same
in every process that holds it. Every address has a native form (`tcp:host:80`), which `str` gives, and most have a URL form
(`tcp://host:80`); both are accepted everywhere.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, Self

# sizeof(sockaddr_un.sun_path) less one byte: the final NUL of a path, the leading NUL of an abstract name.
_UNIX_LIMIT = 107

_URL_SCHEMES = {"tcp": "tcp", "tls": "tls", "ipc": "unix", "inproc": "local", "metatls": "metatls", "quic": "quic", "metaquic": "metaquic"}
_NETWORK = ("tcp", "tls", "metatls", "quic", "metaquic")
_UNSUPPORTED = ("metatls", "quic", "metaquic")
_WILDCARDS = ("*", "0.0.0.0", "::")


class Choice:
    """One of a fixed set of named constants. Subclasses list them; they are singletons, attributes of their class, pickled by name.

    Stands in for `enum.Enum`, whose import takes milliseconds that every new process would pay.
    """

    __slots__ = ("name", "value")
    name: str
    value: int
    _members: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, *_: object) -> None:
        raise TypeError(f"{type(self).__name__} has a fixed set of members")

    def __init_subclass__(cls, *, members: tuple[str, ...]) -> None:
        made: dict[str, Choice] = {}
        for value, name in enumerate(members):
            member = object.__new__(cls)
            object.__setattr__(member, "name", name)
            object.__setattr__(member, "value", value)
            setattr(cls, name, member)
            made[name] = member
        cls._members = made

    @classmethod
    def members(cls) -> Mapping[str, Self]:
        """All members by name, in order."""
        return dict(cls._members)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{self.name} is constant")

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __int__(self) -> int:
        return self.value

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (type(self), self.name)


_TRANSPORT_MEMBERS = (
    "TcpWithLocalhost",
    "TcpWithHostname",
    "MetaTlsWithHostname",
    "MetaTlsWithIpV6",
    "Tls",
    "Quic",
    "MetaQuicWithHostname",
    "MetaQuicWithIpV6",
    "Local",
    "Unix",
)


class ChannelTransport(Choice, members=_TRANSPORT_MEMBERS):
    """Kinds of transport, for the places that take "any address of this kind"."""

    __slots__ = ()
    TcpWithLocalhost: ClassVar[ChannelTransport]
    TcpWithHostname: ClassVar[ChannelTransport]
    MetaTlsWithHostname: ClassVar[ChannelTransport]
    MetaTlsWithIpV6: ClassVar[ChannelTransport]
    Tls: ClassVar[ChannelTransport]
    Quic: ClassVar[ChannelTransport]
    MetaQuicWithHostname: ClassVar[ChannelTransport]
    MetaQuicWithIpV6: ClassVar[ChannelTransport]
    Local: ClassVar[ChannelTransport]
    Unix: ClassVar[ChannelTransport]

    @classmethod
    def named(cls, text: str) -> ChannelTransport | None:
        """The transport with a short name such as `tcp`, `unix` or `tcp(localhost)`, upper or lower case; None if there is none."""
        return _TRANSPORTS.get(text.lower())

    def require_supported(self) -> None:
        """Raise `ValueError` if this transport exists only so that old programs import and unpickle."""
        if self.name.startswith(("Meta", "Quic")):
            raise _unsupported(repr(self))


# The first name of each transport is its text form.
_TRANSPORTS = {
    "tcp(localhost)": ChannelTransport.TcpWithLocalhost,
    "tcp(hostname)": ChannelTransport.TcpWithHostname,
    "tls": ChannelTransport.Tls,
    "unix": ChannelTransport.Unix,
    "local": ChannelTransport.Local,
    "metatls(hostname)": ChannelTransport.MetaTlsWithHostname,
    "metatls(ipv6)": ChannelTransport.MetaTlsWithIpV6,
    "quic": ChannelTransport.Quic,
    "metaquic(hostname)": ChannelTransport.MetaQuicWithHostname,
    "metaquic(ipv6)": ChannelTransport.MetaQuicWithIpV6,
    "tcp": ChannelTransport.TcpWithHostname,
    "ipc": ChannelTransport.Unix,
    "inproc": ChannelTransport.Local,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
    "metaquic": ChannelTransport.MetaQuicWithIpV6,
}
_TRANSPORT_TEXT = {transport: name for name, transport in reversed(list(_TRANSPORTS.items()))}


class ChannelAddr:
    """A parsed address: one place to listen at or to dial, perhaps with an identity or a second place to bind.

    `scheme` is `tcp`, `tls`, `unix`, `local`, or one that is refused when used (`metatls`, `quic`, `metaquic`). Network addresses
    have `host` (without brackets) and `port`, or `fd` in place of `port` for a socket that already listens. Unix addresses have
    `path`, `@name` if abstract; local ones have `number`. `bound` is the right side of an alias, else None. `label` and `uid` name
    the agent that must answer, else None. Equal by meaning: `tcp` and `tls` are the same, host names ignore case.
    """

    __slots__ = ("bound", "fd", "host", "label", "number", "path", "port", "scheme", "uid")
    scheme: str
    host: str | None
    port: int | None
    fd: int | None
    path: str | None
    number: int | None
    bound: ChannelAddr | None
    label: str | None
    uid: str | None

    def __init__(self, text: str) -> None:
        try:
            _parse_into(self, text)
        except ValueError as error:
            raise ValueError(f"invalid address: {text} ({error})") from None

    @staticmethod
    def parse(text: str) -> ChannelAddr:
        """The address that `text` spells, in URL or native form. Raises `ValueError` with `invalid address`, or `TypeError`."""
        return ChannelAddr(text)

    @staticmethod
    def any(transport: ChannelTransport) -> str:
        """Native form of a fresh address of this kind: any port, a random abstract name, any number."""
        if not isinstance(transport, ChannelTransport):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expected ChannelTransport, got {type(transport).__name__}")
        if transport is ChannelTransport.Unix:
            return f"unix:{_random_name()}"
        if transport is ChannelTransport.Local:
            return "local:0"
        if transport is ChannelTransport.TcpWithLocalhost:
            return "tcp:127.0.0.1:0"
        from os import uname

        return f"{_TRANSPORT_TEXT[transport].partition('(')[0]}:{uname().nodename}:0"

    @property
    def url(self) -> str:
        """URL form of the address."""
        return self._text("://", {"unix": "ipc", "local": "inproc"})

    @property
    def loopback(self) -> bool:
        """Whether the host is this machine's loopback, as far as its spelling shows."""
        host = (self.host or "").lower()
        return host in ("localhost", "::1") or _is_loopback_ip(host)

    @property
    def wildcard(self) -> bool:
        """Whether the host means all interfaces."""
        return self.host in _WILDCARDS

    def get_port(self) -> int:
        """The port, 0 where there is none."""
        return self.port or 0

    def get_transport(self) -> ChannelTransport:
        """The kind of transport this address belongs to."""
        if self.scheme == "tcp":
            return ChannelTransport.TcpWithLocalhost if self.loopback else ChannelTransport.TcpWithHostname
        if self.scheme in ("metatls", "metaquic"):
            return _TRANSPORTS[f"{self.scheme}(hostname)"]
        return _TRANSPORTS[self.scheme]

    def require_supported(self) -> None:
        """Raise `ValueError` if no agent can bind or dial this scheme."""
        if self.scheme in _UNSUPPORTED:
            raise _unsupported(f"{self.scheme}://")

    def __str__(self) -> str:
        return self._text(":", {})

    def __repr__(self) -> str:
        return f"ChannelAddr({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ChannelAddr) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return ChannelAddr, (str(self),)

    def _text(self, separator: str, schemes: Mapping[str, str]) -> str:
        if self.path is not None:
            place = self.path
        elif self.number is not None:
            place = str(self.number)
        else:
            host = self.host or ""
            place = f"{f'[{host}]' if ':' in host else host}:{f'fd{self.fd}' if self.port is None else self.port}"
        alias = "" if self.bound is None else "@" + self.bound._text(separator, schemes)
        identity = "" if self.uid is None else f"{self.label}<{self.uid}>@"
        return f"{identity}{schemes.get(self.scheme, self.scheme)}{separator}{place}{alias}"

    def _key(self) -> tuple[object, ...]:
        scheme = "tcp" if self.scheme == "tls" else self.scheme
        host = None if self.host is None else self.host.lower()
        bound = None if self.bound is None else self.bound._key()
        return (scheme, host, self.port, self.fd, self.path, self.number, bound, self.label, self.uid)


def place_of(address: ChannelAddr) -> ChannelAddr:
    """The address without an identity: the address that an agent binds."""
    if address.uid is None:
        return address
    place = object.__new__(ChannelAddr)
    for name in ChannelAddr.__slots__:
        setattr(place, name, getattr(address, name))
    place.label = place.uid = None
    return place


class BindSpec:
    """The specification of a listening address: any address of a transport, or one address.

    Takes a `ChannelTransport`, its short name, a URL or native address, or another `BindSpec`. Raises `ValueError` with
    `invalid bind spec` for text that names neither, `TypeError` for anything else.
    """

    __slots__ = ("address", "transport")
    transport: ChannelTransport | None
    address: ChannelAddr | None

    def __init__(self, spec: ChannelTransport | BindSpec | str) -> None:
        self.transport = None
        self.address = None
        if isinstance(spec, BindSpec):
            self.transport, self.address = spec.transport, spec.address
        elif isinstance(spec, ChannelTransport):
            self.transport = spec
        elif isinstance(spec, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            self.transport = ChannelTransport.named(spec)
            if self.transport is None:
                self.address = _bindable(spec)
        else:
            raise TypeError(f"expected ChannelTransport enum, BindSpec, or str, got {type(spec).__name__}")

    def require_supported(self) -> None:
        """Raise `ValueError` if no agent can bind this transport."""
        for part in (self.transport, self.address):
            if part is not None:
                part.require_supported()

    def __str__(self) -> str:
        return str(self.address) if self.transport is None else _TRANSPORT_TEXT[self.transport]

    def __repr__(self) -> str:
        return f"BindSpec({self.transport!r})" if self.address is None else f"BindSpec({str(self.address)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BindSpec):
            return NotImplemented
        return self.transport is other.transport and self.address == other.address

    def __hash__(self) -> int:
        return hash((self.transport, self.address))

    def __reduce__(self) -> tuple[Any, ...]:
        return BindSpec, (self.transport or str(self),)


def _bindable(text: str) -> ChannelAddr:
    address = object.__new__(ChannelAddr)
    try:
        _parse_into(address, text)
        if address.uid is not None:
            raise ValueError("an identity names an agent to join, not a place to listen at")
    except ValueError as error:
        raise ValueError(f"invalid bind spec: {text} ({error})") from None
    return address


def _parse_into(address: ChannelAddr, text: str) -> None:
    """Fill in `address`. The text of an error is the reason only; the caller puts the address before it."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected an address as str, got {type(text).__name__}")
    for name in ChannelAddr.__slots__:
        setattr(address, name, None)
    head, marker, rest = text.partition(">@")
    label, opening, uid = head.partition("<")
    if marker and opening and not any(letter in ":/@!>" or letter.isspace() for letter in label):
        if not uid or any(letter in "<>:/@!" or letter.isspace() for letter in uid):
            raise ValueError("the identity is not `label<uid>`")
        address.label, address.uid, text = label, uid, rest
    address.scheme, place = _split_scheme(text)
    if address.scheme == "unix":
        address.path = _unix_path(place)
    elif address.scheme == "local":
        address.number = _decimal(place, (1 << 64) - 1, "number")
    elif address.scheme in _NETWORK:
        dialled, alias, bound = place.partition("@")
        _parse_place(address, dialled)
        if alias:
            address.bound = _parse_bound(address, bound)


def _split_scheme(text: str) -> tuple[str, str]:
    scheme, separator, place = text.partition("://")
    if separator and scheme in _URL_SCHEMES:
        return _URL_SCHEMES[scheme], place
    for separator in ":!":
        scheme, found, place = text.partition(separator)
        if found and scheme in _URL_SCHEMES.values():
            return scheme, place
    raise ValueError("expected one of tcp:// tls:// ipc:// inproc:// and then a place")


def _parse_place(address: ChannelAddr, place: str) -> None:
    host, colon, port = place.rpartition(":")
    if not colon:
        raise ValueError("a port is missing")
    address.host = _host(host)
    if port.startswith("fd"):
        address.fd = _decimal(port[2:], (1 << 31) - 1, "descriptor")
    else:
        address.port = _decimal(port, (1 << 16) - 1, "port")


def _parse_bound(dialled: ChannelAddr, text: str) -> ChannelAddr:
    bound = ChannelAddr(text)
    if bound.uid is not None or bound.bound is not None:
        raise ValueError("an alias has two sides only")
    if dialled.scheme not in ("tcp", "tls") or bound.scheme not in ("tcp", "tls"):
        raise ValueError("both sides of an alias are tcp:// or tls://")
    if dialled.wildcard or not dialled.port:
        raise ValueError("the left side of an alias is dialled by others, it needs a host and a port")
    return bound


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]"):
        from socket import AF_INET6, inet_pton

        literal = text[1:-1]
        try:
            inet_pton(AF_INET6, literal.partition("%")[0])
        except (OSError, ValueError):
            raise ValueError(f"`{literal}` is not an IPv6 address") from None
        return literal
    if ":" in text:
        raise ValueError("an IPv6 address must be in brackets")
    if text != "*" and not (text and all(letter.isalnum() or letter in "-._" for letter in text)):
        raise ValueError(f"`{text}` is not a host")
    return text


def _unix_path(place: str) -> str:
    # As in 0.7, an empty place is a fresh abstract name.
    path = place or _random_name()
    if path == "@":
        raise ValueError("the abstract name is empty")
    if "\0" in path:
        raise ValueError("the path contains NUL")
    size = len(path.encode("utf-8", "surrogateescape"))
    if size - path.startswith("@") > _UNIX_LIMIT:
        raise ValueError(f"the path has {size} bytes, a unix socket allows {_UNIX_LIMIT}")
    return path


def _decimal(text: str, limit: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= limit):
        raise ValueError(f"{what} `{text}` is not a number from 0 to {limit}")
    return int(text)


def _is_loopback_ip(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(part.isdigit() for part in parts)


def _random_name() -> str:
    from os import urandom

    return f"@monarch-{urandom(12).hex()}"


def _unsupported(what: str) -> ValueError:
    return ValueError(f"{what} is not supported\nhint: use tls://")
