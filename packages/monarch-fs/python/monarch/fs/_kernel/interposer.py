"""The C library between pyfuse3 and libfuse: part of the wheel of pyfuse3, or compiled at its first use; loaded before pyfuse3.

pyfuse3 passes only the file handle of a read, and the kernel sends handle 0 for a file that it opened without a request. The library
puts the inode there, so opens need no request. It also counts all requests, passes interrupts on, and resumes connections.

The wheel of pyfuse3 that this project builds has the library, so its hosts need no compiler. A host that compiles pyfuse3 compiles the
library as well, and keeps it in a cache. The name of the result has the hash of the source, of libfuse's version and of the compiler's
target, so a change of one of them compiles anew. Processes that compile at once rename their results onto the same name, each result
being complete. Where there is no library, mounts by pyfuse3 work with opens as requests.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from monarch.fs._kernel.fuse_protocol import OPCODES

SOURCE = Path(__file__).with_name("interposer.c")
# The name in a wheel of pyfuse3: another source is another library.
SHIPPED = f"monarch_interposer_{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
# The most seconds of the compiler; it needs less than one.
COMPILE_TIMEOUT = 60.0
_COUNTERS = 64


class InterposerError(Exception):
    """The library cannot be compiled or loaded; the text has the reason."""


class Interposer:
    """The loaded library; one in a process."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            self._counts = (ctypes.c_uint64 * _COUNTERS).in_dll(self._library, "monarch_fs_counts")
            self._request = ctypes.c_uint64.in_dll(self._library, "monarch_fs_request")
            self._thread = ctypes.c_uint32.in_dll(self._library, "monarch_fs_thread")
            self._flags = ctypes.c_uint32.in_dll(self._library, "monarch_fs_flags")
            # The functions of libfuse that it calls call Python: the global lock of the interpreter remains locked.
            resume = ctypes.PyDLL(str(path))["monarch_fs_resume"]
        except (OSError, ValueError, AttributeError) as e:
            raise InterposerError(f"cannot load {path}: {e}") from None
        self._resume: Callable[[], int] = resume
        self._callback: object = None

    def configure(self, *, read_ahead: int, background: int, immutable: bool) -> None:
        """What is negotiated when the kernel initialises the connection: bytes of read-ahead, asynchronous reads at once."""
        for name, value in (("read_ahead", read_ahead), ("background", background), ("immutable", int(immutable))):
            ctypes.c_uint32.in_dll(self._library, f"monarch_fs_{name}").value = value

    def on_interrupt(self, then: Callable[[int], None]) -> None:
        """Calls `then` with the identity of a request whose process got a signal, on the thread that receives requests."""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
        self._callback = kind(then)
        ctypes.c_void_p.in_dll(self._library, "monarch_fs_interrupted").value = ctypes.cast(self._callback, ctypes.c_void_p).value

    def request(self) -> int:
        """The identity of the request whose handler begins."""
        return self._request.value

    def reader(self) -> tuple[int, bool]:
        """Of the read whose handler begins: the thread id of the reader, 0 if it is in another pid namespace; whether it reads O_DIRECT."""
        return self._thread.value, bool(self._flags.value & os.O_DIRECT)

    def in_front(self) -> bool:
        """Whether the session of pyfuse3 was made through this library."""
        return bool(self._library.monarch_fs_in_front())

    def resume(self) -> bool:
        """Takes an initialised connection over; True: a request was received already and waits. `OSError` where the kernel cannot."""
        result = self._resume()
        if result < 0:
            raise OSError(-result, f"the kernel cannot send the requests of the connection again: {os.strerror(-result)}")
        return bool(result)

    def counters(self) -> dict[str, int]:
        """Requests of the connection that this process received, by name; those with none are left out."""
        return {OPCODES.get(code, f"opcode_{code}"): count for code, count in enumerate(self._counts) if count}


@cache
def load() -> Interposer:
    """The library of this process; `InterposerError` where there is none, each time."""
    return Interposer(build())


def build() -> Path:
    """The compiled library, of the wheel of pyfuse3 or in the cache, compiled if it is not there; `InterposerError` has the reason."""
    shipped = _shipped()
    return _cached() if shipped is None else shipped


def compile_into(path: Path) -> None:
    """Compiles the library for a wheel of pyfuse3; `InterposerError` has the compiler's output."""
    compiler, flags, _ = _toolchain()
    _compile(compiler, flags, path)


def _shipped() -> Path | None:
    found = find_spec("pyfuse3")
    paths = [Path(folder) / SHIPPED for folder in (found and found.submodule_search_locations) or ()]
    return next((path for path in paths if path.is_file()), None)


def _toolchain() -> tuple[str, list[str], str]:
    """The compiler, its flags, and the version of libfuse."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise InterposerError("no C compiler (apt-get install gcc libc6-dev)")
    if shutil.which("pkg-config") is None:
        raise InterposerError("no pkg-config (apt-get install pkg-config)")
    flags = _output(["pkg-config", "--cflags", "--libs", "fuse3"], "no headers of libfuse (apt-get install libfuse3-dev)").split()
    version = _output(["pkg-config", "--modversion", "fuse3"], "no headers of libfuse (apt-get install libfuse3-dev)")
    return compiler, flags, version


def _compile(compiler: str, flags: list[str], path: Path) -> None:
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", str(path), str(SOURCE), *flags, "-ldl"]
    _output(command, "the interposer does not compile")


def _cached() -> Path:
    compiler, flags, version = _toolchain()
    target = _output([compiler, "-dumpmachine"], f"{compiler} does not work")
    key = hashlib.sha256(b"\0".join([SOURCE.read_bytes(), version.encode(), target.encode(), " ".join(flags).encode()])).hexdigest()[:24]
    folder = _folder()
    path = folder / f"interposer-{key}.so"
    if _trusted(path):
        return path
    handle, partial = tempfile.mkstemp(dir=folder, suffix=".tmp")
    os.close(handle)
    try:
        _compile(compiler, flags, Path(partial))
        os.chmod(partial, 0o700)
        os.rename(partial, path)
    except OSError as e:
        raise InterposerError(f"cannot write {path}: {e.strerror}") from None
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return path


def _folder() -> Path:
    home = os.environ.get("MONARCH_HOME") or os.path.join(os.path.expanduser("~"), ".monarch")
    folder = Path(home) / "fs-interposer"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as e:
        raise InterposerError(f"cannot use {folder}: {e.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise InterposerError(f"{folder} must be a directory of this user that no other user can write")
    return folder


def _trusted(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022 and found.st_size > 0


def _output(command: list[str], failure: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise InterposerError(f"{failure}: {e}") from None
    if done.returncode:
        raise InterposerError(f"{failure}: {done.stderr.strip()[:500] or f'exit code {done.returncode}'}")
    return done.stdout.strip()
