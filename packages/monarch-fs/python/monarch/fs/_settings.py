"""The settings of this wheel, by its entry point of the group `monarch.settings`."""

from __future__ import annotations

from monarch.extension import Setting

SETTINGS = (
    Setting(
        "fs_store_dir",
        "str",
        "",
        "Where a machine keeps the chunks of mounted trees; a folder of its own for each machine and user. Empty: `MONARCH_HOME/fs/store-<machine>`.",
    ),
    Setting(
        "fs_store_bytes",
        "int",
        0,
        "Bytes that the store may take. 0: the smaller of 100 GiB and half the space that is free, with what the store has.",
        unit="bytes",
    ),
)
