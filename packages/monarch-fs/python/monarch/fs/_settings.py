"""The settings of this wheel, by its entry point of the group `monarch.settings`."""

from __future__ import annotations

from monarch.extension import Setting

SETTINGS = (
    Setting(
        "fs_store_dir",
        "str",
        "",
        "Folder of the chunks of mounted trees, for one machine and user: an absolute path, which may be in memory (`/dev/shm`). "
        "Empty: a folder for each below `MONARCH_HOME/fs`.",
    ),
    Setting(
        "fs_store_bytes",
        "int",
        0,
        "Bytes that the store may take. 0: the smaller of 100 GiB and half the space that is free, with what the store has; in memory "
        "at most a quarter of the memory that is available.",
        unit="bytes",
    ),
    Setting(
        "fs_backend",
        "str",
        "auto",
        "The server of mounts on this machine. `pyfuse3`: pyfuse3 and libfuse. `device`: /dev/fuse itself. `auto`: pyfuse3 where it can be "
        "loaded, the device itself otherwise.",
    ),
)
