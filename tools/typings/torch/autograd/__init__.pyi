from typing import Any

from torch.autograd.function import Function as Function

def __getattr__(name: str) -> Any: ...
