"""Names of the sections of an ELF file, to test whether it is stripped."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def section_names(image: bytes) -> Iterator[str]:
    """Names of all sections of a 64-bit little-endian ELF image; `ValueError` for anything else.

    Offsets are those of the System V ABI, "ELF-64 Object File Format": the header at 0, `e_shoff` at 0x28, `e_shentsize`, `e_shnum`,
    `e_shstrndx` from 0x3A; a section header holds its name's offset at 0, its file offset at 0x18 and its size at 0x20.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    if not table or not count:
        return
    (names_start,) = struct.unpack_from("<Q", image, table + names_index * entry + 0x18)
    for index in range(count):
        (name,) = struct.unpack_from("<I", image, table + index * entry)
        start = names_start + name
        yield image[start : image.index(b"\0", start)].decode()


def unstripped_sections(image: bytes) -> list[str]:
    """Sections that stripping removes: the symbol table and debug information."""
    return [name for name in section_names(image) if name in (".symtab", ".strtab") or name.startswith((".debug", ".zdebug"))]
