"""The software that this process runs: versions of its loaded packages, digests of its own code, its environment, and its devices.

Processes of a mesh that differ in one of these are compared by `monarch diagnose`. All of it is read from memory when the stacks are taken:
files are not read, as a file system may hang. So a digest is that of the loaded functions, and a module with values alone has none.
"""

from __future__ import annotations

import os
import re
import sys
from itertools import islice
from types import FunctionType, ModuleType
from zlib import crc32

from monarch._core.call.actor import EndpointProperty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType
    from typing import Any

# The most packages, modules and variables of an answer, and the most functions of a module.
_MOST_PACKAGES = 200
_MOST_MODULES = 200
_MOST_VARIABLES = 500
_MOST_FUNCTIONS = 500
_DEEPEST = 5
_LONGEST = 80
# Variables of the libraries that training programs use. Their values are shown, those of others are compared only.
_SHOWN = re.compile(
    r"(?:NCCL|RCCL|GLOO|UCX|FI|TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|NVIDIA|HIP|ROCR|HSA|XLA|JAX|TF|OMP|MKL|OPENBLAS|NUMEXPR|KMP|TRITON|HF"
    r"|TRANSFORMERS|TOKENIZERS|VLLM|LD|MALLOC|PYTHON|MONARCH)[A-Z0-9]*_|PYTHON[A-Z]+$"
)
# The rules of `masking` take longer to load than all else here; each text of a diagnosis is masked by them in the end.
_SECRET = re.compile(r"TOKEN|SECRET|KEY|PASS|PWD|AUTH|CRED|COOKIE|SIG|JWT|PRIVATE", re.IGNORECASE)
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen ")
_DEVICE = re.compile(r"nvidia\d+")
# Modules to their spec and digest: a look holds the GIL, and a program with thousands of functions would wait at each.
_digests: dict[str, tuple[object, str]] = {}


def software() -> dict[str, Any]:
    """`packages` to their versions, `code` to digests of modules, `variables` to values or digests, and the number of `gpus`."""
    # An import that was forbidden is None, and a program may put any object there.
    loaded: dict[str, object] = dict(sys.modules)
    modules = {name: module for name, module in loaded.items() if isinstance(module, ModuleType)}
    return {
        "packages": dict(islice(_packages(modules), _MOST_PACKAGES)),
        "code": dict(islice(_code(modules), _MOST_MODULES)),
        "variables": dict(islice(_variables(os.environ), _MOST_VARIABLES)),
        "gpus": sum(_DEVICE.fullmatch(name) is not None for name in os.listdir("/dev")),
    }


def _packages(modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, str]]:
    yield "python", sys.version.partition(" ")[0]
    for name, module in modules.items():
        # `vars` runs no code of the package.
        version = vars(module).get("__version__") if "." not in name and name not in sys.stdlib_module_names else None
        if isinstance(version, str) and not name.startswith("_"):
            yield name, version[:_LONGEST]


def _code(modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, str]]:
    """The modules of the program itself: neither of the library, nor installed, nor of Monarch."""
    for name, module in modules.items():
        file = vars(module).get("__file__")
        top = name.partition(".")[0]
        if not isinstance(file, str) or top in ("monarch", "__main__", "__mp_main__") or top in sys.stdlib_module_names:
            continue
        if any(part in file for part in _INSTALLED):
            continue
        digest = _digest(name, module)
        if digest:
            yield name, digest


def _digest(name: str, module: ModuleType) -> str:
    """The digest of the functions, kept until the module is executed again, which gives it another spec."""
    spec = vars(module).get("__spec__")
    known = _digests.get(name)
    if known is not None and known[0] is spec:
        return known[1]
    digest = _of_functions(name, module)
    # A module whose import has not ended has more functions at the next look.
    if spec is not None and not getattr(spec, "_initializing", False):
        _digests[name] = spec, digest
    return digest


def _of_functions(module_name: str, module: ModuleType) -> str:
    """A digest of the functions and classes of a module; empty without any."""
    found = count = 0
    for name, code in _functions(module_name, vars(module), _DEEPEST):
        found = crc32(f"{name} {_text(code, _DEEPEST)}\n".encode(errors="replace"), found)
        count += 1
        if count == _MOST_FUNCTIONS:
            break
    return f"{found:08x}" if count else ""


def _functions(module: str, names: Mapping[str, Any], deepest: int) -> Iterator[tuple[str, CodeType]]:
    for name, value in sorted(names.items(), key=lambda one: one[0]):
        inner: Any = value.__core__.method if isinstance(value, EndpointProperty) else value
        if type(inner) in (staticmethod, classmethod):
            inner = inner.__func__
        if isinstance(inner, FunctionType):
            # A decorated function has the one that it wraps.
            wrapped = vars(inner).get("__wrapped__")
            if inner.__module__ == module:
                yield name, (wrapped if isinstance(wrapped, FunctionType) else inner).__code__
        elif isinstance(value, type) and value.__module__ == module and deepest:
            for inside, its in _functions(module, vars(value), deepest - 1):
                yield f"{name}.{inside}", its


def _text(code: CodeType, deepest: int) -> str:
    """What a function does, without its file and lines: places of files differ between hosts."""
    inner = [_text(one, deepest - 1) for one in code.co_consts if hasattr(one, "co_code") and deepest]
    plain = [repr(one) for one in code.co_consts if isinstance(one, (int, float, str, bytes, bool))]
    return f"{code.co_code.hex()} {code.co_names} {plain} {inner}"


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each variable with its value where it is shown, else with a digest; one of a secret is too short to be a test of guesses."""
    for name, value in sorted(environ.items()):
        secret = _SECRET.search(name) is not None or "@" in value
        if _SHOWN.match(name) and not secret and len(value) <= _LONGEST:
            yield name, value
        else:
            digest = crc32(value.encode(errors="replace"))
            yield name, f"#{digest & 0xFFFF:04x}" if secret else f"#{digest:08x}"
