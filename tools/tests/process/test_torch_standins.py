"""Stand-ins for libraries: a program that links a missing library is loaded with one, and ends if it calls one of its functions."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import torch_standins

SITE = ("torch/lib", "torch-1.dist-info")
# One function has a version, one is found by its prefix, and one variable, too.
LIBRARY = "int cublasTimes(int x) { return 2 * x; }\nint ncclCount(int x) { return x; }\nint ncclTable[4];\n"
USER = """
int cublasTimes(int x);
int ncclCount(int x);
extern int ncclTable[4];
int answer(void) { return 7; }
int *table(void) { return ncclTable; }
int times(int x) { return cublasTimes(x); }
int count(int x) { return ncclCount(x); }
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for program in ("gcc", "readelf"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed; `tools/system_packages.sh test` does it")
    for name in SITE:
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def compiled(path: Path, source: str, *options: str) -> None:
    argv = ["gcc", "-w", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *options, "-o", str(path)]
    subprocess.run(argv, input=source, text=True, check=True)


def loaded(image: Path, code: str) -> subprocess.CompletedProcess[str]:
    text = f"import ctypes; it = ctypes.CDLL({str(image)!r}); {code}"
    return subprocess.run([sys.executable, "-IS", "-c", text], capture_output=True, text=True, check=False)


def test_library_with_missing_dependencies_is_loaded(site: Path, tmp_path: Path) -> None:
    lib = site / "torch" / "lib"
    versions = tmp_path / "versions"
    versions.write_text("V_13 { global: cublasTimes; };\n")
    compiled(lib / "libcublas.so.13", LIBRARY.splitlines()[0], "-Wl,-soname,libcublas.so.13", f"-Wl,--version-script={versions}")
    compiled(lib / "libnccl.so.2", "\n".join(LIBRARY.splitlines()[1:]), "-Wl,-soname,libnccl.so.2")
    user = lib / "libuser.so"
    compiled(user, USER, str(lib / "libcublas.so.13"), str(lib / "libnccl.so.2"), f"-Wl,-rpath,{lib}", "-Wl,-z,now")
    assert torch_standins.make(site) == []
    for name in ("libcublas.so.13", "libnccl.so.2"):
        (lib / name).unlink()
    assert "cannot open shared object" in loaded(user, "pass").stderr
    assert torch_standins.make(site) == ["libcublas.so.13", "libnccl.so.2"]
    assert sorted(path.name for path in lib.iterdir()) == ["libcublas.so.13", "libnccl.so.2", "libuser.so"]
    assert loaded(user, "print(it.answer(), it.table() != 0)").stdout == "7 True\n"
    for call, library in (("times", "libcublas.so.13"), ("count", "libnccl.so.2")):
        done = loaded(user, f"it.{call}(1)")
        assert (done.returncode, done.stderr) == (-signal.SIGABRT, f"{library} is a stand-in: this PyTorch runs on the CPU only\n")


def test_requirements_that_it_replaces_are_forgotten(site: Path) -> None:
    path = site / "torch-1.dist-info" / "METADATA"
    kept = "Name: torch\nRequires-Dist: numpy\n"
    words = ("nvidia-cublas==13 ; sys_platform == 'linux'", "cuda-toolkit[cublas]==13", "triton==3")
    path.write_text(kept + "".join(f"Requires-Dist: {word}\n" for word in words) + "\nText\n")
    torch_standins.forget_requirements(site)
    assert path.read_text() == kept + "\nText\n"
