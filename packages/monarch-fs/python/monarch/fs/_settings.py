"""The settings of this wheel, by its entry point of the group `monarch.settings`."""

from __future__ import annotations

from monarch.extension import Setting

SETTINGS = (
    Setting(
        "fs_store_dir",
        "str",
        "",
        "Folder of the chunks of mounted trees, for one machine and user. Empty: a folder for each below `MONARCH_HOME/fs`.",
    ),
    Setting(
        "fs_store_bytes",
        "int",
        0,
        "Bytes that the store may take. 0: the smaller of 100 GiB and half the space that is free, with what the store has.",
        unit="bytes",
    ),
)
