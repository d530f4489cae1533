"""Makes a PyTorch from the package index run on the CPU without the CUDA libraries that its wheel links, 2.4 GB which no test needs.

    python tools/torch_standins.py [SITE_PACKAGES]     by default those of the interpreter

The loader requires every linked library, with its symbols in their versions. Each missing library is replaced by a stand-in with just
these.
A function of a stand-in that is called aborts with the library's name, which cannot happen while `torch.cuda.is_available()` is false. The
requirements of the metadata are removed as well, so that no later installation brings the libraries.

The version of a symbol names its library (`.gnu.version_r`); for a symbol without a version the prefix of its name decides. The
required symbols are read from relocations, as a symbol that is never relocated need not exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# This library comes with the driver, and is opened when a device is used.
_OF_DRIVER = "libcuda.so.1"
_SYSTEM = (Path("/lib/x86_64-linux-gnu"), Path("/lib64"))
# Prefixes of symbols without a version. A longer prefix comes before a shorter one that it begins with.
_PREFIXES = {
    "nvJitLink": "libnvJitLink.so",
    "cusparseLt": "libcusparseLt.so",
    "cublasLt": "libcublasLt.so",
    "cusolver": "libcusolver.so",
    "cusparse": "libcusparse.so",
    "nvshmem": "libnvshmem_host.so",
    "cublas": "libcublas.so",
    "curand": "libcurand.so",
    "cuFile": "libcufile.so",
    "__cuda": "libcudart.so",
    "cudnn": "libcudnn.so",
    "cufft": "libcufft.so",
    "cupti": "libcupti.so",
    "nvrtc": "libnvrtc.so",
    "pnccl": "libnccl.so",
    "nccl": "libnccl.so",
    "cuda": "libcudart.so",
}
_REQUIRED = re.compile(r"^Requires-Dist: (?:nvidia-|cuda-|triton\b).*\n", re.MULTILINE)
# Bytes for a variable of any of these libraries; no code reads it.
_VARIABLE = 256


class Wanted(NamedTuple):
    """A symbol of another library that a library of PyTorch uses. `version` is empty if it has none."""

    library: str
    version: str
    name: str
    is_function: bool


def make(site: Path) -> list[str]:
    """Makes the stand-ins in the folder of PyTorch's libraries, and returns their names; none if no library is missing."""
    folder = site / "torch" / "lib"
    there = {path.name for place in (folder, site / "nvidia", *_SYSTEM) for path in place.rglob("*.so*")} | {_OF_DRIVER}
    symbols: dict[str, set[Wanted]] = {}
    for image in sorted(folder.glob("*.so*")):
        missing = _linked(image) - there
        for library in missing:
            symbols.setdefault(library, set())
        for wanted in _wanted(image, missing) if missing else ():
            symbols[wanted.library].add(wanted)
    for library, found in sorted(symbols.items()):
        _compile(folder / library, found)
    return sorted(symbols)


def forget_requirements(site: Path) -> None:
    """Removes the CUDA libraries and their compiler from PyTorch's requirements."""
    for path in site.glob("torch-*.dist-info/METADATA"):
        text = path.read_text(encoding="utf-8")
        path.write_text(_REQUIRED.sub("", text), encoding="utf-8")


def _linked(image: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.+?)\]", _readelf("--dynamic", image)))


def _wanted(image: Path, libraries: set[str]) -> Iterator[Wanted]:
    """The symbols of these libraries that an image uses."""
    owners = _owners(image)
    # A symbol of another library has no address of its own: zeros.
    for found in re.finditer(r"(R_X86_64_\w+)\s+0{16}\s+(\S+)", _readelf("--relocs", image)):
        name, _, version = found[2].partition("@")
        version = version.lstrip("@")
        library = owners.get(version) or _by_prefix(name, libraries)
        if library in libraries:
            yield Wanted(library, version, name, found[1] == "R_X86_64_JUMP_SLOT")


def _owners(image: Path) -> dict[str, str]:
    """The library of each version that an image needs."""
    owners: dict[str, str] = {}
    library = ""
    for found in re.finditer(r"File: (\S+)|Name: (\S+)\s+Flags", _readelf("--version-info", image)):
        if found[1]:
            library = found[1]
        elif library:
            owners[found[2]] = library
    return owners


def _by_prefix(name: str, libraries: set[str]) -> str | None:
    stem = next((_PREFIXES[prefix] for prefix in _PREFIXES if name.startswith(prefix)), None)
    return None if stem is None else next((library for library in libraries if library.startswith(stem)), None)


def _compile(path: Path, symbols: set[Wanted]) -> None:
    """Compiles a library of that name with these symbols; functions are aliases of one that aborts."""
    is_function: dict[str, bool] = defaultdict(bool)
    versions: dict[str, list[str]] = defaultdict(list)
    for one in symbols:
        is_function[one.name] |= one.is_function
        versions[one.version].append(one.name)
    text = f"{path.name} is a stand-in: this PyTorch runs on the CPU only"
    source = [
        "#include <stdio.h>",
        "#include <stdlib.h>",
        f'static void stand_in(void) {{ fputs("{text}\\n", stderr); abort(); }}',
    ]
    for name, function in sorted(is_function.items()):
        source.append(f'void {name}(void) __attribute__((alias("stand_in")));' if function else f"char {name}[{_VARIABLE}];")
    script = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(set(names)))} }};" for version, names in versions.items() if version
    ]
    scripted = path.with_name(f"{path.name}.map")
    scripted.write_text("\n".join(script))
    try:
        options = [f"-Wl,-soname,{path.name}", *([f"-Wl,--version-script={scripted}"] if script else ())]
        # Names of built-in functions may be among the symbols.
        argv = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-x", "c", "-", *options, "-o", str(path)]
        subprocess.run(argv, input="\n".join(source), text=True, check=True)
    finally:
        scripted.unlink()


def _readelf(option: str, image: Path) -> str:
    return subprocess.run(["readelf", option, "--wide", str(image)], capture_output=True, text=True, check=True).stdout


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("purelib"))
    if not (site / "torch" / "lib").is_dir():
        print(f"torch_standins: there is no PyTorch in {site}", file=sys.stderr)
        return 1
    for name in make(site):
        print(name)
    forget_requirements(site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
