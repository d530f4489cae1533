"""Live views of host directories under the names of 0.7; `monarch.fs.gather` has more."""

from monarch.fs import GatherMount
from monarch.gather_mount.view import gather_mount

__all__ = ["GatherMount", "gather_mount"]
