"""A wheel with forbidden content is refused, with the reason."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from tools import wheel_contents
from tools.elf import section_names, unstripped_sections
from tools.wheel_contents import Allowed, problems

CORE = "monarch_core-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl"
META = "monarch_suite-0.1.0-py3-none-any.whl"
TYPED = {f"monarch/{portion}/py.typed": b"" for portion in ("_core", "actor", "config", "extension")}


def elf(*sections: str) -> bytes:
    """The smallest image with a table of these sections."""
    names = b"\0".join(name.encode() for name in ("", *sections, ".shstrtab")) + b"\0"
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    count = len(sections) + 2
    struct.pack_into("<Q", header, 0x28, 64 + len(names))
    struct.pack_into("<HHH", header, 0x3A, 64, count, count - 1)
    table = bytearray(64 * count)
    offset = 0
    for index, name in enumerate(("", *sections, ".shstrtab")):
        struct.pack_into("<I", table, 64 * index, offset)
        offset += len(name) + 1
    struct.pack_into("<Q", table, 64 * (count - 1) + 0x18, 64)
    return bytes(header) + names + bytes(table)


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    path = folder / name
    dist_info = "-".join(name.split("-")[:2]) + ".dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, data in {**files, f"{dist_info}/METADATA": b"", f"{dist_info}/RECORD": b""}.items():
            archive.writestr(inside, data)
    return path


def test_good_wheels(tmp_path: Path) -> None:
    native = {"monarch/_core/_native.abi3.so": elf(".text", ".dynsym", ".dynstr")}
    assert list(problems(wheel(tmp_path, CORE, {**TYPED, **native, "monarch/actor/__init__.py": b""}))) == []
    assert list(problems(wheel(tmp_path, META, {}))) == []


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"monarch/__init__.py": b""}, "only monarch-compat has an __init__"),
        ({"monarch/__init__.pyi": b""}, "only monarch-compat has an __init__"),
        ({"monarch/rdma/__init__.py": b""}, "outside the portions"),
        ({"monarch/actor.py": b""}, "outside the portions"),
        ({"tests/test_x.py": b""}, "outside the portions"),
        ({"other-1.0.dist-info/METADATA": b""}, "outside the portions"),
        ({"monarch/_core/tests/test_x.py": b""}, "does not belong"),
        ({"monarch/_core/__pycache__/x.cpython-311.pyc": b""}, "does not belong"),
        ({"monarch/_core/_native.abi3.so": elf(".text", ".symtab")}, "not stripped: .symtab"),
        ({"monarch/_core/_native.abi3.so": elf(".debug_info")}, "not stripped: .debug_info"),
        ({"monarch/_core/_native.abi3.so": b"MZ"}, "not a 64-bit little-endian ELF"),
    ],
)
def test_bad_contents(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    (found,) = problems(wheel(tmp_path, CORE, {**TYPED, **files}))
    assert next(iter(files)) in found
    assert reason in found


def test_portion_without_its_type_marker_is_found(tmp_path: Path) -> None:
    (found,) = problems(wheel(tmp_path, CORE, {name: b"" for name in TYPED if "config" not in name}))
    assert found.startswith("monarch/config/py.typed: missing")


def test_meta_package_is_empty(tmp_path: Path) -> None:
    (found,) = problems(wheel(tmp_path, META, {"monarch/actor/__init__.py": b""}))
    assert "outside the portions of 'monarch_suite': none" in found


def test_sizes_tags_and_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wheel_contents.WHEELS, "monarch_core", Allowed(("monarch/_core/",), 300, 100, "cp311-abi3-"))
    files = {"monarch/_core/py.typed": b"", "monarch/_core/big.py": b"#" * 101}
    download, installed = problems(wheel(tmp_path, CORE, files))
    assert "to download, the limit is 300" in download
    assert "101 bytes installed, the limit is 100" in installed
    assert "tag 'cp312-cp312-linux_x86_64'" in next(problems(wheel(tmp_path, "monarch_core-0.1.0-cp312-cp312-linux_x86_64.whl", files)))
    assert list(problems(wheel(tmp_path, "other-1.0-py3-none-any.whl", {}))) == ["'other' is no wheel of this project"]


def test_sections_of_an_image() -> None:
    assert list(section_names(elf(".text", ".symtab"))) == ["", ".text", ".symtab", ".shstrtab"]
    assert unstripped_sections(elf(".text", ".symtab", ".strtab", ".debug_line")) == [".symtab", ".strtab", ".debug_line"]
    assert list(section_names(b"\x7fELF\x02\x01" + bytes(58))) == []
