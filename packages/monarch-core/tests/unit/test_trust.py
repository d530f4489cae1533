"""Credentials that a user gives: secrets, keys and certificates, and the errors for refused ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from monarch._core.config.address import ChannelAddr
from monarch._core.hosts.trust import Given, read_secret
from monarch.config import configured

SECRET = b"0123456789abcdef" * 2
PEM = "-----BEGIN CERTIFICATE-----\n...\n-----END CERTIFICATE-----\n"
REMOTE = ChannelAddr.parse("tcp://example.org:1")


def secret_file(tmp_path: Path, content: bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


# ---- secrets


def test_secret_is_bytes_or_a_files_content(tmp_path: Path) -> None:
    assert read_secret(SECRET) == SECRET
    assert read_secret(secret_file(tmp_path, SECRET)) == SECRET


def test_line_end_of_a_secret_file_is_stripped(tmp_path: Path) -> None:
    assert read_secret(secret_file(tmp_path, b"twenty bytes of text\n")) == b"twenty bytes of text"


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"short\n", 0o600, "a secret of 5 bytes is too short, 16 at least"),
        (b"x" * 5000, 0o600, "longer than 4096 bytes"),
        (SECRET, 0o640, "others may read it, chmod 600 it"),
    ],
)
def test_secret_file_is_refused_by_its_name(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    path = secret_file(tmp_path, content, mode)
    with pytest.raises(ValueError, match=f"^secret file {path}: {why}$"):
        read_secret(path)


def test_secret_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = secret_file(tmp_path, SECRET)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)
    with pytest.raises(ValueError, match=f"^secret file {path}: belongs to another user$"):
        read_secret(path)


# Makes a Secret volume like the kubelet, and reads it like a user of a container.
VOLUME = """
import os, subprocess, sys
from monarch._core.hosts.trust import read_secret

folder, mode, is_read_only = sys.argv[1], int(sys.argv[2], 8), sys.argv[3] == "ro"
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
os.chdir(folder)
os.mkdir("..1")
os.chmod(".", 0o755)
with open("..1/secret", "w") as f:
    f.write("twenty bytes of text")
os.chown("..1/secret", 0, 4242)
os.chmod("..1/secret", mode)
if is_read_only:
    os.symlink("..1", "..data")
    os.symlink("..data/secret", "secret")
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
os.setgroups([4242])
os.setresgid(1000, 1000, 1000)
os.setresuid(1000, 1000, 1000)
try:
    print(read_secret(folder + ("/secret" if is_read_only else "/..1/secret")).decode())
except ValueError as error:
    print(str(error).partition("secret: ")[2])
"""


@pytest.mark.parametrize(
    ("mode", "kind", "expected"),
    [
        ("0440", "ro", "twenty bytes of text"),
        ("0644", "ro", "twenty bytes of text"),
        ("0666", "ro", "others may read it, chmod 600 it"),
        ("0440", "rw", "twenty bytes of text"),
        ("0644", "rw", "others may read it, chmod 600 it"),
        ("0460", "rw", "others may read it, chmod 600 it"),
    ],
)
def test_secret_volume_is_read_as_it_is_mounted(tmp_path: Path, mode: str, kind: str, expected: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    # A user without rights has to reach the folder.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        command = ["unshare", "--mount", sys.executable, "-c", VOLUME, folder, mode, kind]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_secret_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match=f"^secret file {path}: not a file$"):
        read_secret(path)


def test_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="^a secret of 5 bytes is too short"):
        read_secret(b"short")


# ---- keys and certificates


def test_key_and_certificates_are_text_bytes_or_files(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("the key")
    for private_key, ca in ((PEM, PEM), (PEM.encode(), PEM.encode())):
        trust = Given(None, private_key, ca, insecure=False).of(REMOTE)
        assert (trust.kind, trust.key, trust.ca) == ("site", PEM.encode(), PEM.encode())
    trust = Given(None, str(key), PEM, insecure=False).of(REMOTE)
    assert trust.key == b"the key\n"


@pytest.mark.parametrize("missing", ["private_key", "ca"])
def test_missing_key_or_certificate_is_named(tmp_path: Path, missing: str) -> None:
    path = str(tmp_path / "missing.pem")
    given = {"private_key": PEM, "ca": PEM, missing: path}
    with pytest.raises(ValueError, match=f"^{missing} {path}: no such file or directory$"):
        Given(None, given["private_key"], given["ca"], insecure=False)


@pytest.mark.parametrize(("private_key", "ca"), [(PEM, None), (None, PEM)])
def test_key_and_certificates_belong_together(private_key: str | None, ca: str | None) -> None:
    with pytest.raises(ValueError, match="private_key= and ca= belong together"):
        Given(None, private_key, ca, insecure=False)


# ---- addresses


def test_address_of_another_machine_needs_credentials() -> None:
    with pytest.raises(ValueError, match=r"^tcp://example\.org:1 needs one of: secret="):
        Given(None, None, None, insecure=False).of(REMOTE)


def test_socket_of_this_machine_needs_none() -> None:
    assert Given(None, None, None, insecure=False).of(ChannelAddr.parse("unix:@here")).kind == "user"


def test_unencrypted_use_is_warned_of() -> None:
    given = Given(None, None, None, insecure=True)
    with pytest.warns(UserWarning, match="without encryption"):
        assert given.of(REMOTE).kind == "insecure"


def test_trust_all_holds_for_loopback_only() -> None:
    with pytest.warns(DeprecationWarning, match="is not needed any more"):
        given = Given(None, None, "trust_all_connections", insecure=False)
    assert given.of(ChannelAddr.parse("tcp://127.0.0.1:1")).kind == "insecure"
    with pytest.raises(ValueError, match="needs one of"):
        given.of(REMOTE)


def test_setting_accepts_what_names_no_credentials() -> None:
    with pytest.warns(DeprecationWarning):
        before = Given(None, None, "trust_all_connections", insecure=False)
    with pytest.raises(ValueError, match="MONARCH_TRUST_ALL=1 at both ends, in such a network, accepts ca='trust_all_connections'$"):
        before.of(REMOTE)
    with configured(trust_all=True):
        for given in (before, Given(None, None, None, insecure=False)):
            with pytest.warns(UserWarning, match=r"tcp://example\.org:1 is used without encryption because MONARCH_TRUST_ALL is set"):
                assert given.of(REMOTE).kind == "insecure"
        assert Given(SECRET, None, None, insecure=False).of(REMOTE).kind == "secret"
        assert Given(None, PEM, PEM, insecure=False).of(REMOTE).kind == "site"
        assert before.of(ChannelAddr.parse("unix:@here")).kind == "user"


def test_trust_shows_no_secret() -> None:
    assert repr(Given(SECRET, None, None, insecure=False).of(REMOTE)) == "<Trust secret>"
