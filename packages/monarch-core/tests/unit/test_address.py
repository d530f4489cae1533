"""Addresses and bind specifications: every form, in both directions, and refused texts."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.config.address import BindSpec, ChannelAddr, ChannelTransport, place_of

TRANSPORTS = list(ChannelTransport.members().values())
REFUSED = ["MetaTlsWithHostname", "MetaTlsWithIpV6", "Quic", "MetaQuicWithHostname", "MetaQuicWithIpV6"]

FORMS = [
    ("tcp://1.2.3.4:80", "tcp:1.2.3.4:80"),
    ("tcp://host-1.example_a:0", "tcp:host-1.example_a:0"),
    ("tls://host:443", "tls:host:443"),
    ("tcp://*:80", "tcp:*:80"),
    ("tcp://[::1]:80", "tcp:[::1]:80"),
    ("tls://[fe80::1%eth0]:80", "tls:[fe80::1%eth0]:80"),
    ("tcp://localhost:fd7", "tcp:localhost:fd7"),
    ("ipc:///tmp/a.sock", "unix:/tmp/a.sock"),
    ("ipc:///tmp/a@b<c>@d", "unix:/tmp/a@b<c>@d"),
    ("ipc://@abstract", "unix:@abstract"),
    ("inproc://18446744073709551615", "local:18446744073709551615"),
    ("tcp://public:80@tcp://0.0.0.0:8080", "tcp:public:80@tcp:0.0.0.0:8080"),
    ("tls://[::1]:80@tcp://*:0", "tls:[::1]:80@tcp:*:0"),
    ("tcp://public:80@tcp://localhost:fd3", "tcp:public:80@tcp:localhost:fd3"),
    ("hosts<2NEpo7TZRRrLZSi2U>@tcp://h:1", "hosts<2NEpo7TZRRrLZSi2U>@tcp:h:1"),
    ("<2NEpo7>@ipc://@x", "<2NEpo7>@unix:@x"),
    ("a<b>@tcp://p:1@tls://*:2", "a<b>@tcp:p:1@tls:*:2"),
    ("metatls://h:1", "metatls:h:1"),
    ("quic://h:1", "quic:h:1"),
    ("metaquic://h:1", "metaquic:h:1"),
]


@pytest.mark.parametrize(("url", "native"), FORMS)
def test_forms(url: str, native: str) -> None:
    address = ChannelAddr.parse(url)
    assert (str(address), address.url) == (native, url)
    assert repr(address) == f"ChannelAddr({native!r})"
    again = ChannelAddr(native)
    assert again == address and hash(again) == hash(address)
    for other in (pickle.loads(pickle.dumps(address)), copy.deepcopy(address)):
        assert other == address and str(other) == native


@pytest.mark.parametrize("native", ["tcp:1.2.3.4:80", "tcp:[::1]:0", "tls:h:1", "unix:/p:q!r", "unix:@a", "local:1", "metatls:h:1"])
def test_exclamation_mark_for_the_first_colon(native: str) -> None:
    assert str(ChannelAddr.parse(native.replace(":", "!", 1))) == native


def test_parts() -> None:
    address = ChannelAddr("agents<uid>@tcp://Public:80@tls://[::]:0")
    assert (address.label, address.uid, address.scheme, address.host, address.port) == ("agents", "uid", "tcp", "Public", 80)
    assert address.bound is not None
    assert (address.bound.scheme, address.bound.host, address.bound.port, address.bound.wildcard) == ("tls", "::", 0, True)
    assert (address.fd, address.path, address.number) == (None, None, None)
    assert ChannelAddr("tcp:h:fd7").fd == 7 and ChannelAddr("tcp:h:fd7").port is None
    assert ChannelAddr("unix:@a").path == "@a"
    assert ChannelAddr("inproc://7").number == 7
    assert [ChannelAddr(text).get_port() for text in ("tcp:h:9", "unix:/p", "tcp:h:fd9")] == [9, 0, 0]


def test_empty_unix_address_is_a_fresh_abstract_name() -> None:
    first, second = ChannelAddr("ipc://"), ChannelAddr("unix:")
    assert first != second
    assert ChannelAddr(str(first)) == first
    assert str(first).startswith("unix:@")


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_loopback(host: str) -> None:
    address = ChannelAddr(f"tcp://{host}:1")
    assert address.loopback
    assert address.get_transport() is ChannelTransport.TcpWithLocalhost


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]", "10.0.0.1", "localhost.example", "127.example", "127.0.0.x"])
def test_not_loopback(host: str) -> None:
    assert not ChannelAddr(f"tcp://{host}:1").loopback


@pytest.mark.parametrize(
    ("text", "transport"),
    [
        ("tcp:h:1", ChannelTransport.TcpWithHostname),
        ("tls:localhost:1", ChannelTransport.Tls),
        ("unix:/p", ChannelTransport.Unix),
        ("local:1", ChannelTransport.Local),
        ("quic:h:1", ChannelTransport.Quic),
        ("metatls:h:1", ChannelTransport.MetaTlsWithHostname),
        ("metaquic:h:1", ChannelTransport.MetaQuicWithHostname),
    ],
)
def test_transport_of_an_address(text: str, transport: ChannelTransport) -> None:
    assert ChannelAddr(text).get_transport() is transport


def test_equal_by_meaning() -> None:
    assert ChannelAddr("tcp://Host:1") == ChannelAddr("tls:host:1")
    assert hash(ChannelAddr("tcp://Host:1")) == hash(ChannelAddr("tls:host:1"))
    different = ["tcp:h:1", "tcp:h:2", "tcp:g:1", "tcp:h:fd1", "unix:h", "local:1", "quic:h:1", "a<b>@tcp:h:1", "tcp:h:1@tcp:*:1"]
    assert len({ChannelAddr(text) for text in different}) == len(different)
    assert ChannelAddr("tcp:h:1") != "tcp:h:1"


INVALID = [
    ("", "expected one of"),
    ("junk", "expected one of"),
    ("sim://x", "expected one of"),
    ("ipc:/p", "expected one of"),
    ("TCP://h:1", "expected one of"),
    ("tcp://h", "a port is missing"),
    ("tcp://h:", "port `` is not a number"),
    ("tcp://h:99999", "port `99999` is not a number from 0 to 65535"),
    ("tcp://h:-1", "port `-1`"),
    ("tcp://h:0x1", "port `0x1`"),
    ("tcp://h:\u0663", "port"),
    ("tcp://h:" + "1" * 5000, "port"),
    ("tcp://h:fd", "descriptor ``"),
    ("tcp://h:fd-1", "descriptor `-1`"),
    ("tcp://:80", "`` is not a host"),
    ("tcp://a b:80", "`a b` is not a host"),
    ("tcp://a/b:80", "`a/b` is not a host"),
    ("tcp://**:80", "`**` is not a host"),
    ("tcp://::1:80", "must be in brackets"),
    ("tcp://[::g]:80", "`::g` is not an IPv6 address"),
    ("tcp://[1.2.3.4]:80", "is not an IPv6 address"),
    ("inproc://x", "number `x`"),
    ("local:18446744073709551616", "number"),
    ("ipc://@", "the abstract name is empty"),
    ("ipc:///a\0b", "NUL"),
    ("ipc:///" + "a" * 107, "the path has 108 bytes"),
    ("tcp://h:1@", "expected one of"),
    ("tcp://h:1@ipc:///p", "both sides of an alias"),
    ("metatls://h:1@tcp://h:1", "both sides of an alias"),
    ("tcp://*:1@tcp://*:1", "left side of an alias"),
    ("tcp://h:0@tcp://*:1", "left side of an alias"),
    ("tcp://h:fd1@tcp://*:1", "left side of an alias"),
    ("tcp://h:1@tcp://g:1@tcp://f:1", "two sides only"),
    ("a<>@tcp://h:1", "the identity is not"),
    ("a<b@tcp://h:1", "expected one of"),
]


@pytest.mark.parametrize(("text", "reason"), INVALID)
def test_invalid(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        ChannelAddr.parse(text)
    assert str(caught.value).startswith(f"invalid address: {text} (") and reason in str(caught.value)
    with pytest.raises(ValueError) as caught:
        BindSpec(text)
    assert str(caught.value).startswith(f"invalid bind spec: {text} (") and reason in str(caught.value)


def test_longest_unix_names() -> None:
    assert ChannelAddr("unix:/" + "a" * 106).path == "/" + "a" * 106
    assert ChannelAddr("unix:@" + "a" * 107).path == "@" + "a" * 107
    with pytest.raises(ValueError, match="unix socket allows"):
        ChannelAddr("unix:@" + "a" * 108)


@pytest.mark.parametrize("wrong", [1, None, b"tcp://h:1"])
def test_wrong_types(wrong: object) -> None:
    with pytest.raises(TypeError, match="expected an address as str"):
        ChannelAddr.parse(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected ChannelTransport enum, BindSpec, or str"):
        BindSpec(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected ChannelTransport"):
        ChannelAddr.any(wrong)  # type: ignore[arg-type]


def test_transport_members_are_constants() -> None:
    assert [transport.name for transport in TRANSPORTS if transport.name not in REFUSED] == [
        "TcpWithLocalhost",
        "TcpWithHostname",
        "Tls",
        "Local",
        "Unix",
    ]
    assert set(REFUSED) < set(ChannelTransport.members())
    for transport in TRANSPORTS:
        assert getattr(ChannelTransport, transport.name) is transport
        assert repr(transport) == str(transport) == f"ChannelTransport.{transport.name}"
        assert pickle.loads(pickle.dumps(transport)) is transport
        assert copy.copy(transport) is copy.deepcopy(transport) is transport
    assert len(set(TRANSPORTS)) == len({int(transport) for transport in TRANSPORTS}) == len(TRANSPORTS)
    with pytest.raises(AttributeError):
        ChannelTransport.Unix.name = "other"
    with pytest.raises(TypeError):
        ChannelTransport()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bind_spec_of_a_transport(transport: ChannelTransport) -> None:
    spec = BindSpec(transport)
    assert spec == BindSpec(str(spec)) == BindSpec(spec) == pickle.loads(pickle.dumps(spec))
    assert hash(spec) == hash(BindSpec(spec))
    assert repr(spec) == f"BindSpec(ChannelTransport.{transport.name})"
    assert spec.transport is transport and spec.address is None


def test_short_names() -> None:
    assert BindSpec("tcp") == BindSpec(ChannelTransport.TcpWithHostname)
    assert BindSpec("tcp(Hostname)") == BindSpec(ChannelTransport.TcpWithHostname)
    assert BindSpec("ipc") == BindSpec("unix") == BindSpec(ChannelTransport.Unix)
    assert str(BindSpec("tls")) == "tls"


@pytest.mark.parametrize(("url", "native"), [(url, native) for url, native in FORMS if ">@" not in url or url.startswith("ipc")])
def test_bind_spec_of_an_address(url: str, native: str) -> None:
    spec = BindSpec(url)
    assert str(spec) == native and repr(spec) == f"BindSpec({native!r})"
    assert spec.address == ChannelAddr(url) and spec.transport is None
    assert spec == BindSpec(native) == pickle.loads(pickle.dumps(spec))


def test_bind_spec_equality() -> None:
    assert BindSpec("tcp://h:1") != BindSpec("tcp://h:2")
    assert BindSpec("tls") != BindSpec("tls://h:1")
    assert BindSpec("unix") != ChannelTransport.Unix


def test_identity_cannot_be_bound() -> None:
    with pytest.raises(ValueError, match="invalid bind spec: a<b>@tcp://h:1"):
        BindSpec("a<b>@tcp://h:1")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_any(transport: ChannelTransport) -> None:
    text = ChannelAddr.any(transport)
    address = ChannelAddr.parse(text)
    assert type(text) is str and str(address) == text
    assert address.get_port() == 0
    expected = transport.name.replace("WithIpV6", "WithHostname")
    assert address.get_transport().name == expected


def test_any_unix_is_fresh() -> None:
    assert ChannelAddr.any(ChannelTransport.Unix) != ChannelAddr.any(ChannelTransport.Unix)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_transport_names_the_replacement(name: str) -> None:
    transport = getattr(ChannelTransport, name)
    for refused in (transport, BindSpec(transport), BindSpec(ChannelAddr.any(transport)), ChannelAddr(ChannelAddr.any(transport))):
        with pytest.raises(ValueError, match="is not supported\nhint: use tls://"):
            refused.require_supported()


@pytest.mark.parametrize("name", [name for name in ChannelTransport.members() if name not in REFUSED])
def test_supported_transports(name: str) -> None:
    transport = getattr(ChannelTransport, name)
    transport.require_supported()
    BindSpec(transport).require_supported()
    ChannelAddr(ChannelAddr.any(transport)).require_supported()


words = st.text("abcXYZ019-_.", min_size=1, max_size=12)
hosts = st.one_of(words, st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda ip: f"[{ip}]"))
network = st.builds("{}://{}:{}".format, st.sampled_from(["tcp", "tls"]), hosts, st.integers(1, 65535))
dialled = network.filter(lambda url: not ChannelAddr(url).wildcard)
bound = st.builds("{}://{}:{}".format, st.sampled_from(["tcp", "tls"]), st.one_of(hosts, st.just("*")), st.integers(0, 65535))
urls = st.one_of(
    network,
    st.builds("{}@{}".format, dialled, bound),
    st.builds("tcp://{}:fd{}".format, hosts, st.integers(0, 2**31 - 1)),
    st.builds("inproc://{}".format, st.integers(0, 2**64 - 1)),
    st.builds(
        "ipc://{}{}".format, st.sampled_from("/@"), st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)
    ),
)


@given(st.one_of(urls, st.builds("{}<{}>@{}".format, st.one_of(st.just(""), words), words, urls)))
def test_every_form_round_trips(url: str) -> None:
    address = ChannelAddr.parse(url)
    assert address.url == url
    assert ChannelAddr.parse(str(address)) == address
    assert ChannelAddr.parse(address.url) == address
    assert str(ChannelAddr.parse(str(address))) == str(address)


@given(st.text(max_size=30) | st.text(alphabet="tcpls:/@<>![]*fd0129.", max_size=30))
def test_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        assert ChannelAddr(str(ChannelAddr(text))) == ChannelAddr(str(ChannelAddr(text)))
    except ValueError as error:
        assert str(error).startswith("invalid address: ")


def test_place_of_an_address_has_no_identity() -> None:
    address = ChannelAddr("svc<2>@tcp://a:1@tcp://0.0.0.0:1")
    place = place_of(address)
    assert (str(place), address.uid, place_of(place)) == ("tcp:a:1@tcp:0.0.0.0:1", "2", place)
