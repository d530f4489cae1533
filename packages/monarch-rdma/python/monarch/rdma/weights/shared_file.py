"""Memory that a program shares with its proc: a file without a name, which ends with the last process that has it open."""

from __future__ import annotations

import fcntl
import mmap
import os

# No process that maps it accesses bytes beyond its end.
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SharedFile:
    """A mapping of the whole file, whose descriptor it owns. The proc makes it, the program opens it by its path below /proc."""

    def __init__(self, fd: int) -> None:
        try:
            self.memory = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    @classmethod
    def of(cls, nbytes: int) -> SharedFile:
        """A new one, zero; `MemoryError` where there is no memory, or no free descriptor."""
        try:
            fd = os.memfd_create("monarch-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(fd, nbytes)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            except BaseException:
                os.close(fd)
                raise
            return cls(fd)
        except OSError as e:
            raise MemoryError(f"{nbytes:,} bytes of shared memory: {e.strerror}") from None

    @classmethod
    def at(cls, path: str) -> SharedFile:
        """That of another process, which has it open; `MemoryError` as for a new one."""
        try:
            return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as e:
            raise MemoryError(f"shared memory of the proc of this program: {e.strerror}") from None

    @property
    def path(self) -> str:
        """For other processes of this user, as long as this object lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            os.close(fd)
