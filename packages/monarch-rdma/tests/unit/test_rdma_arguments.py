"""Bad input is refused at the call, before anything starts."""

from __future__ import annotations

import array

import pytest

from monarch.rdma import RDMAAction, RDMABuffer, allocate


@pytest.fixture
def buffer():
    with RDMABuffer(memoryview(bytearray(100))) as made:
        yield made


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"bytes", "got bytes: pass memoryview"),
        (bytearray(3), "got bytearray: pass memoryview"),
        ([1, 2], "got list"),
        (None, "got NoneType"),
        (memoryview(b""), "zero bytes"),
        (memoryview(bytearray(12)).cast("B", (3, 4)), "shape \\(3, 4\\)"),
        (memoryview(bytearray(12))[::2], "strides \\(2,\\)"),
    ],
)
def test_unshareable_memory_is_refused(buffer, data, words):
    for call in (RDMABuffer, buffer.read_into, buffer.write_from):
        with pytest.raises(ValueError, match=words):
            call(data)


def test_arrays_of_numpy():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ValueError, match="got ndarray: pass memoryview"):
        RDMABuffer(numpy.zeros(4))
    with RDMABuffer(memoryview(numpy.zeros(4))) as made:
        assert made.size() == 32


def test_items_of_any_format():
    data = array.array("d", [1.0, 2.0])
    with RDMABuffer(memoryview(data)) as made:
        got = array.array("d", [0.0, 0.0])
        made.read_into(memoryview(got)).get()
        assert got == data


def test_immutable_bytes_are_never_overwritten(buffer):
    frozen = b"\x01" * 100
    with pytest.raises(ValueError, match="read-only"):
        buffer.read_into(memoryview(frozen))
    with pytest.raises(ValueError, match="read-only"):
        RDMAAction().read_remote(memoryview(frozen), buffer)
    with pytest.raises(ValueError, match="read-only"):
        RDMAAction().fetch_add(buffer, memoryview(frozen), 1)
    assert frozen == b"\x01" * 100


def test_read_only_memory_yields_a_read_only_handle():
    with RDMABuffer(memoryview(b"frozen")) as made:
        assert made.readonly
        got = bytearray(6)
        made.read_into(memoryview(got)).get()
        assert got == b"frozen"


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (-1, ValueError),
        (float("nan"), ValueError),
        (1 << 64, OverflowError),
        (float("inf"), OverflowError),
        ("1", TypeError),
        (True, TypeError),
    ],
)
def test_absurd_timeouts(buffer, timeout, error):
    memory = memoryview(bytearray(100))
    action = RDMAAction().read_remote(memory, buffer)
    for call in (buffer.read_into, buffer.write_from):
        with pytest.raises(error):
            call(memory, timeout=timeout)
    for submit in (action.submit, action.prepare().submit):
        with pytest.raises(error):
            submit(timeout=timeout)


@pytest.mark.parametrize(("lease", "error"), [(0, ValueError), (-1.0, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_absurd_leases(lease, error):
    with pytest.raises(error):
        RDMABuffer(memoryview(bytearray(1)), lease=lease)


def test_sizes_that_do_not_fit(buffer):
    with pytest.raises(ValueError, match="99 bytes, the buffer 100"):
        buffer.read_into(memoryview(bytearray(99)))
    with pytest.raises(ValueError, match="101 bytes, the buffer 100"):
        buffer.write_from(memoryview(bytearray(101)))
    with pytest.raises(ValueError, match="99 bytes, the buffer 100"):
        RDMAAction().read_remote(memoryview(bytearray(99)), buffer)
    with pytest.raises(ValueError, match="101 bytes, the buffer 100"):
        RDMAAction().write_remote(buffer, memoryview(bytearray(101)))
    with pytest.raises(ValueError, match="outside"):
        buffer.restrict(offset=100)
    with pytest.raises(ValueError, match="outside"):
        buffer.restrict(length=0)
    with pytest.raises(TypeError):
        buffer.read_into(memoryview(bytearray(100)), offset=1.5)


def test_words_that_do_not_fit(buffer):
    with pytest.raises(ValueError, match="a word has 8 bytes"):
        RDMAAction().fetch_add(buffer, memoryview(bytearray(7)), 1)
    with pytest.raises(OverflowError):
        RDMAAction().fetch_add(buffer, memoryview(bytearray(8)), 1 << 64)
    with pytest.raises(OverflowError):
        RDMAAction().compare_and_swap(buffer, memoryview(bytearray(8)), -1, 0)


@pytest.mark.parametrize(("nbytes", "error"), [(0, ValueError), (-5, ValueError), (1 << 62, MemoryError), (1.5, TypeError)])
def test_allocations_that_cannot_be(nbytes, error):
    with pytest.raises(error):
        allocate(nbytes)


def test_memory_that_is_shared_stays_where_it_is():
    data = bytearray(100)
    view = memoryview(data)
    buffer = RDMABuffer(view)
    with pytest.raises(BufferError):
        view.release()
    with pytest.raises(BufferError):
        data.clear()
    buffer.drop().get()
    view.release()
    data.clear()
