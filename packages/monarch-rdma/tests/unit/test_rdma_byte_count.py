"""Numbers of bytes, as people write them."""

from __future__ import annotations

import pytest

from monarch.rdma._cli.byte_count import LARGEST, parse, show


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("4096B", 4096),
        ("4k", 4096),
        ("4K", 4096),
        ("4KiB", 4096),
        (" 4 kib ", 4096),
        ("4KB", 4000),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("0.001kb", 1),
        ("2T", 2 << 40),
        (str(LARGEST), LARGEST),
    ],
)
def test_numbers(text, nbytes):
    assert parse(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "0",
        "0MiB",
        "1.5",
        "1e9",
        "4 Ki B",
        "0x10",
        "1EiB",
        ".5k",
        "4MiBs",
        "nan",
        "0.3KiB",
        str(LARGEST + 1),
        "9" * 5000 + "T",
    ],
)
def test_no_numbers(text):
    with pytest.raises(ValueError, match="'"):
        parse(text)


@pytest.mark.parametrize("nbytes", [1, 1000, 1024, 1025, 1 << 20, 3 << 29, 5 << 30, 1 << 40])
def test_shown_count_can_be_parsed(nbytes):
    assert parse(show(nbytes).replace(",", "")) == nbytes
