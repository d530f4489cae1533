from typing import Any

from torch import Tensor

class Parameter(Tensor): ...

def __getattr__(name: str) -> Any: ...
