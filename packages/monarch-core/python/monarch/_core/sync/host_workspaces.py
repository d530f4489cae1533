"""The directories of an agent's workspaces: one for each job, removed when the job is over.

    {top}/{host name}/{agent}/
        lock        locked by the agent as long as it lives
        {id}/       `WORKSPACE_DIR` in the procs of a job; the id is that of this host in that job, and no other host or job has it
        {id}.lock   locked, shared, by each process that receives the job's code or imports it
        over/       the trees of the job that ended last; the next job of this agent begins with them, so that only changes are sent
        folders/    links to other folders of this host that are removed with the agent (`keep_until_end`)

`top` is the `WORKSPACE_DIR` that the agent was started with, else `MONARCH_HOME/workspaces`: often a home directory that many hosts share,
in which agents listen at the same address. So no directory is named after an address. The kernel releases locks when a process ends,
however it ends: a lock that can be acquired proves that no process uses the directory. Some file systems do not lock across machines;
therefore an agent removes only the directories of former agents of the same host name.

Only the mirrors of a workspace and the environment beside them are removed. Files that a program has written there stay.
"""

from __future__ import annotations

import fcntl
import os
import sys

from monarch._core.process.workspace_variables import ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MIRRORS = ".monarch"
_OVER = "over"
_FOLDERS = "folders"
_LOCK = "lock"
_SUFFIX = ".lock"
_TREES = ("a", "b")


def lock(path: str, operation: int) -> int | None:
    """Locks a file, which is made if it is not there, and returns its descriptor; None if `LOCK_NB` is given and another process has it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation)
            here, there = os.fstat(fd), os.stat(path)
            if (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:  # the process that held the lock has removed the file
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def lock_of(workspace: str) -> str:
    """The lock file of a job's workspace."""
    return workspace + _SUFFIX


def take_over(workspace: str) -> None:
    """Fills a job's workspace with the trees of the last job of this agent, if there are any."""
    os.makedirs(workspace, 0o700, exist_ok=True)
    try:
        os.rename(os.path.join(os.path.dirname(workspace), _OVER), os.path.join(workspace, _MIRRORS))
    except OSError:  # there are no trees, or this job has mirrors already
        return


def take_over_environment(workspace: str) -> None:
    """Moves the environment of the last job to this job: most of its files are the same at the new place."""
    place = os.path.join(workspace, ENVIRONMENT)
    if not os.path.lexists(place):
        try:
            os.rename(os.path.join(workspace, _MIRRORS, ENVIRONMENT), place)
        except FileNotFoundError:
            return


def keep_until_end(agent: str, folder: str, parents: int) -> None:
    """Registers a folder for removal with the directory of an agent, together with up to `parents` empty directories above it.

    The link is named after the folder's identity: a later folder at that path is not removed.
    """
    links = os.path.join(agent, _FOLDERS)
    try:
        os.mkdir(links, 0o700)
    except FileExistsError:
        for name in _names(links):
            if not os.path.exists(os.path.join(links, name)):  # the folder has been removed
                _remove_file(os.path.join(links, name))
    found = os.stat(folder, follow_symlinks=False)
    try:
        os.symlink(os.path.abspath(folder), os.path.join(links, f"{found.st_dev}-{found.st_ino}-{parents}"))
    except FileExistsError:  # another process of this host has made it
        return


class HostWorkspaces:
    """The workspaces of one agent. The constructor makes `path`, if the file system permits it."""

    def __init__(self, top: str, host: str) -> None:
        from threading import Lock

        from monarch._core.process.identity import new_uid, to_base58

        name = "".join(c if c.isalnum() or c in ".-" else "_" for c in host)
        self.host_directory = os.path.join(os.path.abspath(os.path.expanduser(top)), name)
        self.path = os.path.join(self.host_directory, to_base58(new_uid()))
        self._mutex = Lock()
        self._closed = False
        self._lock: int | None = None
        try:
            while self._lock is None:
                os.makedirs(self.path, 0o700, exist_ok=True)
                try:
                    self._lock = lock(os.path.join(self.path, _LOCK), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except FileNotFoundError:  # another agent treated the directory as a leftover, before it was locked
                    continue
        except OSError:  # a sync fails with the same error, and names the path
            return

    def remove_left(self) -> None:
        """Removes the directories of former agents of this host."""
        for name in _names(self.host_directory):
            path = os.path.join(self.host_directory, name)
            # An agent that begins makes its lock first; a directory without one is left alone.
            if path != self.path and os.path.exists(os.path.join(path, _LOCK)):
                _quietly(lambda path=path: _remove_left(path))

    def job_over(self, id: str) -> None:
        """Keeps the trees of a job for the next one, when the job's last process has ended."""
        workspace = os.path.join(self.path, id)
        if os.path.exists(lock_of(workspace)):
            _quietly(lambda: self._keep(workspace))

    def _keep(self, workspace: str) -> None:
        held = lock(lock_of(workspace), fcntl.LOCK_EX)
        try:
            with self._mutex:
                if self._closed:
                    return
                mirrors, over = os.path.join(workspace, _MIRRORS), os.path.join(self.path, _OVER)
                _clear_mirrors(workspace, keep=True)
                _keep_environment(workspace)
                if os.path.isdir(mirrors):
                    _remove_tree(over)
                    os.rename(mirrors, over)
                _remove_empty(workspace)
                os.unlink(lock_of(workspace))
        finally:
            if held is not None:
                os.close(held)

    def close(self, quiet: bool) -> None:
        """Handles the end of the agent. `quiet`: all its procs have ended, so all mirrors can be removed."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            if quiet:
                _quietly(lambda: _remove_all(self.path))
            if self._lock is not None:
                os.close(self._lock)


_of_agent: HostWorkspaces | None = None


def open_for_agent(top: str, host: str) -> HostWorkspaces:
    """The workspaces of this process's agent, which may listen more than once."""
    global _of_agent
    if _of_agent is None:
        _of_agent = HostWorkspaces(top, host)
    return _of_agent


def close_for_agent(quiet: bool) -> None:
    """Closes the workspaces at the end of the agent's process."""
    global _of_agent
    found, _of_agent = _of_agent, None
    if found is not None:
        found.close(quiet)


def job_over(id: int) -> None:
    from monarch._core.process.identity import to_base58

    if _of_agent is not None:
        _of_agent.job_over(to_base58(id))


def _quietly(run: Callable[[], None]) -> None:
    """Runs a removal and ignores errors: leftovers harm nothing, and the next agent tries again."""
    try:
        run()
    except OSError as e:
        from monarch._core.process import runtime_log

        runtime_log.event("workspace.left", runtime_log.INFO, detail=f"a workspace could not be removed: {e}")


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _remove_left(path: str) -> None:
    held = [lock(os.path.join(path, _LOCK), fcntl.LOCK_EX | fcntl.LOCK_NB)]
    try:
        if held[0] is not None:
            # Procs end with their agent, but not at the same instant.
            held += [lock(os.path.join(path, n), fcntl.LOCK_EX | fcntl.LOCK_NB) for n in _names(path) if n.endswith(_SUFFIX)]
        if None not in held:
            _remove_all(path)
    finally:
        for fd in held:
            if fd is not None:
                os.close(fd)


def _remove_all(path: str) -> None:
    """Removes the directory of an agent. The lock is removed last: until then the next agent can continue the removal."""
    for name in _names(path):
        inner = os.path.join(path, name)
        if name == _OVER:
            _remove_tree(inner)
        elif name == _FOLDERS:
            _remove_folders(inner)
        elif name.endswith(_SUFFIX):
            workspace = inner[: -len(_SUFFIX)]
            _clear_mirrors(workspace, keep=False)
            _remove_tree(os.path.join(workspace, _MIRRORS))
            _remove_tree(os.path.join(workspace, ENVIRONMENT))
            _remove_empty(workspace)
            os.unlink(inner)
    os.unlink(os.path.join(path, _LOCK))
    _remove_empty(path)
    _remove_empty(os.path.dirname(path))


def _remove_folders(links: str) -> None:
    """Removes the folders that `keep_until_end` has registered."""
    for name in _names(links):
        link = os.path.join(links, name)
        device, inode, parents = map(int, name.split("-"))
        try:
            folder = os.readlink(link)
            found = os.stat(folder, follow_symlinks=False)
            if (found.st_dev, found.st_ino, found.st_uid) == (device, inode, os.geteuid()):
                _remove_tree(folder)
        except FileNotFoundError:
            _remove_file(link)
            continue
        for _ in range(parents):
            folder = os.path.dirname(folder)
            _remove_empty(folder)
        _remove_file(link)
    _remove_empty(links)


def _clear_mirrors(workspace: str, keep: bool) -> None:
    """Removes the links to the mirrors. With `keep`, it removes of each mirror all but the tree in use, which is then named `a`."""
    mirrors = os.path.join(workspace, _MIRRORS)
    for quoted in _names(mirrors):
        if quoted == ENVIRONMENT:
            continue
        link = os.path.join(workspace, quoted.replace("%2F", "/").replace("%25", "%"))
        home = os.path.join(mirrors, quoted)
        used = None
        try:
            target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
        except OSError:  # another file is there
            target = ""
        if os.path.dirname(target) == home:
            used = os.path.basename(target)
            os.unlink(link)
            _remove_empty(os.path.dirname(link), workspace)
        if keep:
            _keep_tree(home, used)


def _keep_environment(workspace: str) -> None:
    """Moves the environment of a job beside its trees."""
    place, kept = os.path.join(workspace, ENVIRONMENT), os.path.join(workspace, _MIRRORS, ENVIRONMENT)
    if os.path.isdir(place) and not os.path.islink(place):
        os.makedirs(os.path.dirname(kept), 0o700, exist_ok=True)
        _remove_tree(kept)
        os.rename(place, kept)


def _keep_tree(home: str, used: str | None) -> None:
    for name in _TREES:
        if name != used:
            _remove_tree(os.path.join(home, name))
            _remove_file(os.path.join(home, f"{name}.tree"))
    if used == _TREES[1]:
        for suffix in ("", ".tree"):
            os.rename(os.path.join(home, _TREES[1] + suffix), os.path.join(home, _TREES[0] + suffix))


def _remove_empty(path: str, stop: str = "") -> None:
    """Removes a directory, and those above it up to `stop`, if they are empty."""
    while path != stop:
        try:
            os.rmdir(path)
        except OSError:
            return
        if not stop:
            return
        path = os.path.dirname(path)


def _remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _remove_tree(path: str) -> None:
    from shutil import rmtree

    if sys.version_info >= (3, 12):
        rmtree(path, onexc=_unless_gone)
    else:
        rmtree(path, onerror=lambda function, path, info: _unless_gone(function, path, info[1]))


def _unless_gone(function: object, path: object, error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
