"""Environments at another place: conda's prefix in text and binaries, a venv that works where it was pushed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fs_pushed_source import PushedSource

from monarch.fs._push.environment import relocation_of
from monarch.fs._push.relocation import SHEBANG_BYTES, Relocation

OLD, NEW = b"/opt/old", b"/srv/new place/env"


def relocation(new: bytes = b"/srv/env", **rooms: int) -> Relocation:
    return Relocation((OLD,), new, {name.encode(): room for name, room in rooms.items()})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"prefix=/opt/old\n", b"prefix=/srv/env\n"),
        (b"-L/opt/old/lib:/opt/old", b"-L/srv/env/lib:/srv/env"),
        (b"/opt/older /opt/old-1 /opt/old.bak /opt/old.", b"/opt/older /opt/old-1 /opt/old.bak /srv/env."),
        (b"#!/opt/old/bin/python -E\nx", b"#!/srv/env/bin/python -E\nx"),
        (b"#!/bin/sh\n'''exec' /opt/old/bin/python", b"#!/bin/sh\n'''exec' /srv/env/bin/python"),
        (b"/usr/opt/old /usr/x-L/opt/old lib/opt/old \xc3\xa9/opt/old", b"/usr/opt/old /usr/x-L/opt/old lib/opt/old \xc3\xa9/opt/old"),
        (b"/opt/old+1 /opt/old@2 /opt/old\xc3\xa9 /opt/old", b"/opt/old+1 /opt/old@2 /opt/old\xc3\xa9 /srv/env"),
        (b"-isystem/opt/old -Wl,-rpath,/opt/old A=/opt/old", b"-isystem/srv/env -Wl,-rpath,/srv/env A=/srv/env"),
        (b"file:///opt/old/x '/opt/old' [/opt/old]", b"file:///srv/env/x '/srv/env' [/srv/env]"),
        (b"a\\n/opt/old /x\\n/opt/old", b"a\\n/srv/env /x\\n/srv/env"),
    ],
)
def test_text_has_the_new_prefix(before: bytes, after: bytes) -> None:
    assert relocation().content(b"f", before) == (after, False)


@pytest.mark.parametrize("new", [NEW, b"/" + b"n" * SHEBANG_BYTES])
def test_unusable_shebang_goes_through_env(new: bytes) -> None:
    found = relocation(new)
    assert found.content(b"f", b"#!/opt/old/bin/perl\nprint('/opt/old')\n").data == b"#!/usr/bin/env perl\nprint('" + new + b"')\n"
    assert found.content(b"f", b"#!/opt/old/bin/perl -w\n").data == b"#!/usr/bin/env -S perl -w\n"
    python = b"#!/bin/sh\n'''exec' \"" + new + b'/bin/python3.11" -E "$0" "$@"\n\' \'\'\'\nprint(1)\n'
    assert found.content(b"f", b"#!/opt/old/bin/python3.11 -E\nprint(1)\n").data == python


@pytest.mark.parametrize("name", ["with space", "long" * 40, "both " * 30 + "end"])
def test_script_of_unusable_shebang_runs(tmp_path: Path, name: str) -> None:
    place = tmp_path / name / "bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    script = place / "tool"
    text = b"#!/opt/old/bin/python -E\nimport sys\nprint(sys.argv[1:], sys.flags.ignore_environment)\n"
    script.write_bytes(relocation(os.fsencode(place.parent)).content(b"bin/tool", text).data)
    script.chmod(0o755)
    done = subprocess.run([script, "a b", "$c"], check=True, capture_output=True, text=True, timeout=25)
    assert done.stdout == "['a b', '$c'] 1\n"


def test_prefix_of_common_name_spares_other_paths() -> None:
    found = Relocation((b"/env",), b"/srv/env", {b"bin": 200})
    text = b"#!/usr/bin/env python\nPATH=/env/bin:/usr/bin/env:/a//env x/env\n"
    assert found.content(b"f", text).data == b"#!/usr/bin/env python\nPATH=/srv/env/bin:/usr/bin/env:/a//env x/env\n"
    assert found.content(b"f", b"\0/usr/bin/env\0") == (b"\0/usr/bin/env\0", False)
    data = b"\0/usr/bin/env\0/env/lib" + bytes(9) + b"x"
    assert found.content(b"bin", data) == (b"\0/usr/bin/env\0/srv/env/lib" + bytes(5) + b"x", False)


def test_recorded_binary_keeps_its_size_without_any_nul() -> None:
    assert relocation(b"/s", f=8).content(b"f", b"ELF/opt/old").data == b"ELF/opt/old"
    assert relocation(b"/s", f=8).content(b"f", b"ELF:/opt/old").data == b"ELF:/s" + bytes(6)


def test_binary_strings_are_padded() -> None:
    data = b"\x7fELF\0/opt/old/lib:/opt/old/lib64\0after"
    found = relocation(b"/s", f=8).content(b"f", data)
    assert found == (b"\x7fELF\0/s/lib:/s/lib64" + bytes(12) + b"\0after", False)
    assert len(found.data) == len(data)


def test_longer_prefix_takes_the_placeholders_room() -> None:
    data = b"a\0/opt/old/lib" + bytes(8) + b"after"
    assert relocation(b"/opt/older", f=12).content(b"f", data) == (b"a\0/opt/older/lib" + bytes(6) + b"after", False)
    # Without room nothing moves: neither beyond the placeholder nor over the following bytes.
    assert relocation(b"/opt/older", f=9).content(b"f", data) == (data, True)
    tight = b"a\0/opt/old/lib\0after"
    assert relocation(b"/opt/older", f=100).content(b"f", tight) == (tight, True)


def test_unrecorded_binary_is_reported() -> None:
    data = b"a\0/opt/old\0"
    assert relocation().content(b"f", data) == (data, True)
    assert relocation().content(b"f", b"a\0/opt/older\0") == (b"a\0/opt/older\0", False)


def test_links_into_the_prefix_follow_it() -> None:
    assert relocation().link(b"/opt/old/lib/a") == b"/srv/env/lib/a"
    assert relocation().link(b"/opt/older/a") == b"/opt/older/a"


def conda_prefix(top: Path, record: object) -> Path:
    (top / "conda-meta").mkdir(parents=True)
    (top / "bin").mkdir()
    (top / "bin" / "tool").write_text(f"#!{top}/bin/python\n")
    (top / "bin" / "program").write_bytes(b"\x7fELF\0" + os.fsencode(top) + b"/lib" + bytes(200) + b"end")
    (top / "bin" / "unknown").write_bytes(b"\x7fELF\0" + os.fsencode(top) + b"\0")
    # Cached code is not reported: Python replaces the path in it when it loads it.
    (top / "bin" / "cached.pyc").write_bytes(b"\0" + os.fsencode(top) + b"/cached.py\0")
    (top / "lib").symlink_to(top / "bin")
    (top / "conda-meta" / "tool-1.0-0.json").write_text(json.dumps(record))
    return top


RECORD = {
    "name": "tool",
    "files": ["bin/tool", "bin/program", "bin/unknown"],
    "paths_data": {
        "paths_version": 1,
        "paths": [
            {"_path": "bin/tool", "path_type": "hardlink", "file_mode": "text", "prefix_placeholder": "/build/placehold"},
            {"_path": "bin/program", "path_type": "hardlink", "file_mode": "binary", "prefix_placeholder": "/b" + "_placehold" * 20},
            {"_path": "bin/unknown", "path_type": "hardlink", "sha256": "0" * 64},
        ],
    },
}


def test_conda_prefix_is_rewritten(tmp_path: Path) -> None:
    source, target = conda_prefix(tmp_path / "old", RECORD), tmp_path / "a longer name" / "new"
    moved, pushed = relocation_of(str(source), str(target)), PushedSource(source)
    counts = pushed.push(target, relocation=moved, state=tmp_path / "state")
    assert (counts.failures, counts.left) == ([], ["bin/unknown"])
    assert (target / "bin" / "tool").read_text().startswith(f"#!/bin/sh\n'''exec' \"{target}/bin/python\" ")
    program = (target / "bin" / "program").read_bytes()
    assert program.startswith(b"\x7fELF\0" + os.fsencode(target) + b"/lib\0") and program.endswith(b"\0end")
    assert len(program) == (source / "bin" / "program").stat().st_size
    assert os.readlink(target / "lib") == str(target / "bin")
    again = pushed.push(target, relocation=moved, state=tmp_path / "state")
    assert (again.written, again.left, pushed.fetched) == (0, ["bin/unknown"], 0)
    # Without the record, files with the prefix are written again, with the same result.
    assert pushed.push(target, relocation=moved).left == ["bin/unknown"]
    assert (target / "bin" / "program").read_bytes() == program


def test_prefix_across_pieces_is_found(tmp_path: Path) -> None:
    source, target = conda_prefix(tmp_path / "old", RECORD), tmp_path / "new"
    text = b"x " * ((1 << 19) - 2) + os.fsencode(source) + b"\n"
    (source / "bin" / "long").write_bytes(text)
    PushedSource(source).push(target, relocation=relocation_of(str(source), str(target)))
    assert (target / "bin" / "long").read_bytes() == text.replace(os.fsencode(source), os.fsencode(target))


@pytest.mark.parametrize("record", [[], {"paths_data": []}, {"paths_data": {"paths": [1]}}, {"paths_data": {"paths": [{"_path": 1}]}}])
def test_malformed_record_is_named(tmp_path: Path, record: object) -> None:
    source = conda_prefix(tmp_path / "old", record)
    with pytest.raises(ValueError, match=r"tool-1\.0-0\.json: malformed record of conda"):
        relocation_of(str(source), "/srv/env")


def test_directory_without_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a conda environment"):
        relocation_of(str(tmp_path), "/srv/env")


def test_pushed_venv_works_without_its_source(tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(source)], check=True, timeout=25)
    (packages,) = source.glob("lib/python*/site-packages")
    (packages / "tool.py").write_text(f"import sys\nPLACE = {str(source)!r}\ndef main():\n    print(sys.prefix, PLACE)\n")
    (packages / "other.py").write_text("def place():\n    return place.__code__.co_filename\n")
    subprocess.run([source / "bin" / "python", "-m", "compileall", "-q", packages], check=True, timeout=25)
    (source / "bin" / "tool").write_text(f"#!{source}/bin/python\nimport tool\ntool.main()\n")
    (source / "bin" / "tool").chmod(0o755)
    moved, pushed = relocation_of(str(source), str(target)), PushedSource(source)
    for _ in range(2):
        counts = pushed.push(target, relocation=moved, state=tmp_path / "state")
        assert (counts.failures, counts.left) == ([], [])
    source.rename(tmp_path / "gone")
    for command in ([target / "bin" / "tool"], ["sh", "-c", f". {target}/bin/activate && python -c 'import tool; tool.main()'"]):
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=25)
        assert done.stdout.split() == [str(target), str(target)]
    assert str(source) not in (target / "pyvenv.cfg").read_text()
    [cached] = target.glob("lib/python*/site-packages/__pycache__/other.*.pyc")
    assert os.fsencode(source) in cached.read_bytes()
    done = subprocess.run(
        [target / "bin" / "python", "-c", "import other; print(other.place())"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"{target}/{packages.relative_to(source)}/other.py\n"


PROGRAM = r"""
#include <stdio.h>
static char prefix[256] = "PREFIX";
int main(void) {
    char path[600], text[64] = {0};
    volatile char *here = prefix;
    snprintf(path, sizeof path, "%s/etc/data", (char *)here);
    FILE *file = fopen(path, "r");
    return !file || !fgets(text, sizeof text, file) || fputs(text, stdout) < 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is needed: tools/system_packages.sh build installs one")
@pytest.mark.parametrize("name", ["n", "longer than it was before"])
def test_relocated_conda_program_finds_its_files(tmp_path: Path, name: str) -> None:
    """As an installer leaves it: the prefix, and NUL bytes up to the length of the placeholder."""
    source, target = conda_prefix(tmp_path / "old", RECORD), tmp_path / name
    (source / "etc").mkdir()
    (source / "etc" / "data").write_text("found")
    (tmp_path / "program.c").write_text(PROGRAM.replace("PREFIX", str(source)))
    subprocess.run(["cc", "-o", source / "bin" / "program", tmp_path / "program.c"], check=True, timeout=25)
    counts = PushedSource(source).push(target, relocation=relocation_of(str(source), str(target)))
    assert counts.left == ["bin/unknown"]
    source.rename(tmp_path / "gone")
    assert subprocess.run([target / "bin" / "program"], check=True, capture_output=True, text=True, timeout=25).stdout == "found"
