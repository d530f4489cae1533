"""A venv with packages of pip at another place: scripts, path files, records and links, without the place that it was made at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from monarch.actor import this_host
from monarch.fs._push.push import push

WHEEL = {
    "greeting/__init__.py": "import sys\n\ndef main():\n    print(sys.prefix, sys.argv[1:])\n",
    "greeting-1.0.data/scripts/raw": "#!python\nimport sys\nprint(sys.executable)\n",
    "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
    "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    "greeting-1.0.dist-info/RECORD": "",
}


def run(*argv: str | os.PathLike[str]) -> str:
    return subprocess.run([os.fspath(word) for word in argv], check=True, capture_output=True, text=True, timeout=25).stdout.strip()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    made = tmp_path / "made here"
    run(sys.executable, "-m", "venv", "--without-pip", made)
    wheel = tmp_path / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in WHEEL.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(member, text)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", made / "bin" / "python"]
    run(*pip, "install", "-q", "--no-index", "--no-deps", wheel)
    # An editable package within the environment, and one outside of it.
    (made / "src").mkdir()
    (made / "src" / "edited.py").write_text("PLACE = __file__\n")
    (packages(made) / "edited.pth").write_text(f"{made}/src\n/usr/share/outside\n")
    (made / "bin" / "absolute").symlink_to(made / "bin" / "greet")
    (made / "bin" / "relative").symlink_to("greet")
    (made / "etc").symlink_to("/etc")
    return made


def packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


@pytest.mark.parametrize("name", ["there", "a place with spaces", "long" * 50])
def test_venv_works_where_it_was_pushed(environment: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name / "env"
    report = push(this_host(), environment, str(target), relocate=True).get(timeout=25)
    assert report.prefix_left == [] and report.unreadable == []
    environment.rename(tmp_path / "gone")
    for script in ("greet", "absolute", "relative"):
        assert run(target / "bin" / script, "a b", "c") == f"{target} ['a b', 'c']"
    assert run(target / "bin" / "raw") == f"{target}/bin/python"
    assert run(target / "bin" / "python", "-c", "import edited; print(edited.PLACE)") == f"{target}/src/edited.py"
    assert (packages(target) / "edited.pth").read_text() == f"{target}/src\n/usr/share/outside\n"
    assert run("bash", "-c", '. "$1/bin/activate" && command -v greet && echo $VIRTUAL_ENV', "sh", target).splitlines() == [
        f"{target}/bin/greet",
        str(target),
    ]
    assert (os.readlink(target / "bin" / "absolute"), os.readlink(target / "etc")) == (f"{target}/bin/greet", "/etc")
    # The wheel was outside of the environment: its origin remains unchanged.
    origin = json.loads((packages(target) / "greeting-1.0.dist-info" / "direct_url.json").read_text())
    assert origin["url"].endswith("/greeting-1.0-py3-none-any.whl")
    assert str(environment).encode() not in b"".join(file.read_bytes() for file in target.rglob("*") if is_text(file))
    # The record of pip has relative paths: its packages can be found and removed.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", target / "bin" / "python"]
    run(*pip, "uninstall", "-q", "-y", "greeting")
    assert not (target / "bin" / "greet").exists() and not (packages(target) / "greeting").exists()


def is_text(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.suffix != ".pyc" and "etc" not in path.parts[:-1]


def test_edited_module_is_not_hidden_by_its_cache(environment: Path, tmp_path: Path) -> None:
    """Python takes a cached module for that of its source when size and second of the time are equal."""
    target, module = tmp_path / "there", packages(environment) / "greeting" / "__init__.py"
    times: list[str] = []
    for letter in "ab":
        module.write_text(f"X = {letter!r}\nPLACE = {str(environment)!r}\n")
        os.utime(module, (10**9, 10**9))
        if letter == "a":
            run(environment / "bin" / "python", "-m", "compileall", "-q", module)
            assert list(module.parent.glob("__pycache__/*.pyc"))
        push(this_host(), environment, str(target), relocate=True).get(timeout=25)
        times.append(run(target / "bin" / "python", "-c", "import greeting; print(greeting.X, greeting.PLACE)"))
    assert times == [f"a {target}", f"b {target}"]
