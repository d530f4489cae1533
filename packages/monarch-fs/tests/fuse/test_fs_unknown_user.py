"""Mounts of a user that the user database does not have."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

USER = 4242
SCRIPT = """
import sys
from monarch.actor import this_host
from monarch.fs import PreflightError, gather, mount
source, target = sys.argv[1:]
try:
    mount(this_host(), source, target).ready.get()
except PreflightError as e:
    [lines] = e.missing.values()
    print(*lines, sep="\\n")
try:
    gather(this_host(), source, target)
except PreflightError as e:
    print(*e.missing["this machine"], sep="\\n")
"""
NO_ENTRY = f"the user {USER} has no entry in the user database, without which fusermount3 does not mount (useradd --uid {USER} NAME, or "


@pytest.fixture
def own() -> Generator[Path]:
    """A directory of the other user, who cannot reach those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, USER, USER)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("has_home", [True, False])
def test_preflight_names_the_missing_home_directory(tmp_path: Path, own: Path, has_home: bool) -> None:
    with pytest.raises(KeyError):
        pwd.getpwuid(USER)
    source = own / "source"
    source.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "MONARCH_HOME")}
    if has_home:
        environment["HOME"] = str(own)
    # The mount namespace of the test has a device that is open to all users. The interpreter may be in a folder of root; the other user
    # keeps only the right of root to read it.
    script = 'mknod "$0" c 10 229 && chmod 666 "$0" && mount --bind "$0" /dev/fuse && exec "$@"'
    rights = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    argv = ["unshare", "-m", "sh", "-c", script, str(tmp_path / "device")]
    argv += ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *rights]
    argv += [sys.executable, "-c", SCRIPT, str(source), str(own / "mounted")]
    done = subprocess.run(argv, env=environment, cwd=own, capture_output=True, text=True, timeout=25, check=False)
    entry, *at_home, entry_of_client = done.stdout.splitlines() or [done.stderr, ""]
    assert entry.startswith(NO_ENTRY) and entry_of_client == entry
    if has_home:
        assert not at_home
    else:
        [line] = at_home
        assert line.startswith(f"the user {USER} has no home directory") and "(set MONARCH_HOME to a directory that" in line
    # There is no directory with the name of a tilde.
    assert sorted(os.listdir(own)) == ([".monarch"] if has_home else []) + ["source"]
