"""Modules of monarch-tensor that do not need PyTorch, if PyTorch is missing: the `__init__` of their package cannot be imported then."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tools.project import TENSOR

NAME = "monarch.tensor"


def bare_tensor_package() -> None:
    """Lets `import monarch.tensor.errors` and the like find the modules of the checkout, without the `__init__` of the package.

    Does nothing if PyTorch can be imported, or if the package has been imported.
    """
    if NAME in sys.modules or importlib.util.find_spec("torch") is not None:
        return
    package = ModuleType(NAME)
    package.__path__ = [str(TENSOR / "python" / "monarch" / "tensor")]
    sys.modules[NAME] = package
