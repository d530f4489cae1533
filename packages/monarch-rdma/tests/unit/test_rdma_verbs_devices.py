"""Devices from a made-up sysfs, and what two processes send each other about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_provider import StubRail

from monarch.rdma.verbs.acceptor import Acceptor, partner
from monarch.rdma.verbs.connect_record import MOST_KEYS, RC, SRD, QueueRecord, RegionRecord
from monarch.rdma.verbs.devices import chosen, distance, nearest, ports

LOCAL = "fe80:0000:0000:0000:0099:00ff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a63:0001"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0001"
NONE = "0000:0000:0000:0000:0000:0000:0000:0000"


class Sysfs:
    """A tree with devices below made-up PCI bridges."""

    def __init__(self, root):
        self.root = root

    def device(
        self, name, *, link="Ethernet", gids=((IPV4, "RoCE v2"),), state="4: ACTIVE", numa="0", rate="100 Gb/sec (4X EDR)", pci="", count=1
    ):
        folder = self.root / "class" / "infiniband" / name
        for number in range(1, count + 1):
            port = folder / "ports" / str(number)
            (port / "gids").mkdir(parents=True)
            (port / "gid_attrs" / "types").mkdir(parents=True)
            for text, value in (("link_layer", link), ("state", state), ("rate", rate)):
                (port / text).write_text(value + "\n")
            for index, (gid, kind) in enumerate(gids):
                (port / "gids" / str(index)).write_text(gid + "\n")
                (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
        if pci:
            real = self.root / "devices" / pci
            real.mkdir(parents=True, exist_ok=True)
            (real / "numa_node").write_text(numa + "\n")
            (folder / "device").symlink_to(real)


@pytest.fixture
def sysfs(tmp_path):
    return Sysfs(tmp_path)


def test_ports(sysfs):
    sysfs.device("mlx5_0", pci="pci0000:00/0000:00:01.0/0000:01:00.0", numa="0")
    sysfs.device("mlx5_1", link="InfiniBand", gids=((LOCAL, "IB/RoCE v1"),), pci="pci0000:80/0000:80:01.0", numa="1", count=2)
    sysfs.device("rxe0", state="1: DOWN", rate="nonsense")
    found = ports(str(sysfs.root))
    assert [port.name for port in found] == ["mlx5_0", "mlx5_1", "mlx5_1:2", "rxe0"]
    first, second, third, last = found
    assert (first.active, first.rate, first.numa, first.gid_index, first.gid.hex()) == (True, 100e9, 0, 0, IPV4.replace(":", ""))
    assert (second.link_layer, second.numa, second.gid_type, third.number) == ("InfiniBand", 1, "IB/RoCE v1", 2)
    assert (last.active, last.state, last.rate, last.numa) == (False, "DOWN", 0.0, None) and not last.efa
    assert ports(str(sysfs.root / "nothing")) == []


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        (((LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2"), (IPV4, "IB/RoCE v1"), (IPV4, "RoCE v2")), 3),
        (((LOCAL, "RoCE v2"), (GLOBAL, "RoCE v2")), 1),
        (((LOCAL, "RoCE v2"), (NONE, "")), 0),
        (((IPV4, "IB/RoCE v1"), (LOCAL, "RoCE v2")), 1),
        (((IPV4, "IB/RoCE v1"),), 0),
    ],
)
def test_routable_address_is_chosen(sysfs, gids, index):
    sysfs.device("mlx5_0", gids=gids)
    (port,) = ports(str(sysfs.root))
    assert port.gid_index == index and port.gid_type == gids[index][1]


def test_no_address(sysfs):
    sysfs.device("a", gids=((NONE, "RoCE v2"), ("nonsense", "RoCE v2")))
    sysfs.device("efa_0", link="Unspecified", gids=((LOCAL, ""),))
    first, second = ports(str(sysfs.root))
    assert first.gid == b"" and nearest([first]) == []
    assert second.efa and second.gid and nearest([second]) == [second]


def test_distance(sysfs):
    sysfs.device("near", pci="pci0000:00/0000:00:01.0/0000:01:00.0", numa="0")
    sysfs.device("root", pci="pci0000:00/0000:00:02.0/0000:02:00.0", numa="0")
    sysfs.device("same", pci="pci0000:40/0000:40:01.0", numa="0", rate="200 Gb/sec (4X HDR)")
    sysfs.device("other", pci="pci0000:80/0000:80:01.0", numa="1")
    sysfs.device("down", pci="pci0000:00/0000:00:01.0/0000:01:00.1", numa="0", state="1: DOWN")
    found = ports(str(sysfs.root))
    by_name = {port.device: port for port in found}
    gpu = str(sysfs.root / "devices" / "pci0000:00/0000:00:01.0/0000:01:02.0")
    assert {name: distance(by_name[name], 0, gpu) for name in ("near", "root", "same", "other")} == {
        "near": 0,
        "root": 1,
        "same": 2,
        "other": 3,
    }
    assert [port.device for port in nearest(found, 0, gpu)] == ["near", "root", "same", "other"]
    assert [port.device for port in nearest(found, 1)] == ["other", "same", "near", "root"]
    assert [port.device for port in nearest(found)] == ["same", "near", "other", "root"]


def test_settings_choose_the_devices(sysfs):
    for name, node in (("a", "0"), ("b", "0"), ("c", "1")):
        sysfs.device(name, pci=f"pci0000:{name}0/0000:{name}0:01.0", numa=node)
    found = ports(str(sysfs.root))

    def names(*settings, **more):
        return [(port.device, penalty) for port, penalty in chosen(found, *settings, **more)]

    assert names() == [("a", 1.1), ("b", 1.1), ("c", 1.1)]
    assert names("cpu:0") == [("a", 1.0), ("b", 1.0)] and names("cpu:1") == [("c", 1.0)]
    assert names("cpu:1", 2) == [("c", 1.0), ("a", 2.0)]
    assert names("nic:b") == [("b", 1.1)] and names("nic:x") == []
    gpu = str(sysfs.root / "devices" / "pci0000:b0/0000:b0:01.0/0000:b1:00.0")
    assert names("gpu:0", location=gpu)[0] == ("b", 1.0)


records = st.builds(
    QueueRecord,
    device=st.text(min_size=1, max_size=16).filter(lambda name: "\0" not in name),
    port=st.integers(0, 255),
    transport=st.sampled_from([RC, SRD]),
    gid=st.binary(min_size=16, max_size=16),
    lid=st.integers(0, 0xFFFF),
    number=st.integers(0, 2**32 - 1),
    first_packet=st.integers(0, 2**32 - 1),
    queue_key=st.integers(0, 2**32 - 1),
    mtu=st.sampled_from([256, 1024, 4096]),
    reads=st.integers(0, 0xFFFF),
)
names = st.text("abc_0123", min_size=1, max_size=20)
regions = st.builds(
    RegionRecord, st.integers(0, 2**63), st.integers(1, 2**62), st.booleans(), st.dictionaries(names, st.integers(0, 2**32 - 1), max_size=5)
)


@given(records, regions)
def test_records_come_back(queue, region):
    assert QueueRecord.unpack(queue.pack()) == queue and len(queue.pack()) == 101
    assert RegionRecord.unpack(region.pack()) == region


@given(st.binary(max_size=300), records, regions, st.data())
def test_arbitrary_bytes_are_refused_or_mean_something(data, queue, region, draw):
    for kind, packed in ((QueueRecord, queue.pack()), (RegionRecord, region.pack())):
        at = draw.draw(st.integers(0, len(packed) - 1))
        changed = packed[:at] + draw.draw(st.binary(min_size=1, max_size=1)) + packed[at + 1 :]
        for candidate in (data, changed, packed[:at]):
            try:
                read = kind.unpack(candidate)
            except ValueError:
                continue
            assert kind.unpack(read.pack()) == read


def test_oversized_record_is_refused():
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        RegionRecord(0, 1, False, {"x" * 65: 1}).pack()
    with pytest.raises(ValueError, match="64 at most"):
        RegionRecord(0, 1, False, {f"d{i}": i for i in range(MOST_KEYS + 1)}).pack()


def offer(device, gid, *, transport=RC, lid=0):
    return QueueRecord(device, 1, transport, gid, lid, 1, 0, 0, 1024, 16)


def test_partners():
    fabric = {}
    rails = [StubRail(name, fabric) for name in ("far0", "far1")]
    for i, rail in enumerate(rails):
        rail.port = rail.port._replace(gid=bytes(12) + bytes([10, 99, i, 2]))
    gids = [bytes(12) + bytes([10, 99, i, 1]) for i in (0, 1)]
    assert partner(offer("a", gids[0]), rails, [0, 0], "") == 0 and partner(offer("a", gids[1]), rails, [0, 0], "") == 1
    assert partner(offer("a", gids[1]), rails, [0, 1], "any") == 0
    assert (
        partner(offer("far1", gids[0]), rails, [0, 0], "match_name") == 1
        and partner(offer("a", gids[0]), rails, [0, 0], "match_name") is None
    )
    assert partner(offer("a", gids[0]), rails, [0, 0], "groups:a,far1|far0") == 1
    assert partner(offer("a", gids[0], transport=SRD), rails, [0, 0], "") is None
    assert partner(offer("a", gids[0], lid=3), rails, [0, 0], "") is None
    acceptor = Acceptor(rails)
    first = acceptor.answer("peer", [offer("a", gids[1]), offer("b", gids[0]), offer("c", gids[0], lid=1)])
    assert [one and one.device for one in first] == ["far1", "far0", None]
    assert [len(rail.queues) for rail in rails] == [1, 1]
    # A second offer of a rail replaces the first.
    acceptor.answer("peer", [offer("a", gids[1])])
    acceptor.answer("other", [offer("a", gids[1])])
    assert [len(rail.queues) for rail in rails] == [1, 2]
    acceptor.forget("peer")
    assert [len(rail.queues) for rail in rails] == [0, 1]
    acceptor.forget("other")
    for rail in rails:
        rail.refuses_connections = True
    assert acceptor.answer("peer", [offer("a", gids[0])]) == [None] and not any(rail.queues for rail in rails)
    for rail in rails:
        rail.close()
