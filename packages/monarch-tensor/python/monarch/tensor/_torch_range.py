"""The versions of torch that this wheel is made for."""

from __future__ import annotations

from importlib import metadata

# The oldest supported version and the first unsupported one, by major and minor number.
OLDEST, TOO_NEW = (2, 8), (3, 0)


def check_torch() -> None:
    """`ImportError` with both versions without torch, or with one outside the range."""
    wanted = f"torch >= {'.'.join(map(str, OLDEST))}, < {'.'.join(map(str, TOO_NEW))}"
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise ImportError(f"monarch.tensor needs {wanted}, and torch is not installed here: pip install torch") from None
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if not OLDEST <= numbers < TOO_NEW:
        raise ImportError(f"monarch.tensor needs {wanted}, and torch {version} is installed here")
