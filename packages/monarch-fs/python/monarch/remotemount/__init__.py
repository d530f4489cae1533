"""Mounts of client directories under the names of 0.7; `monarch.fs.mount` has more."""

from monarch.remotemount.mount_handler import MountHandler, remotemount

__all__ = ["MountHandler", "remotemount"]
