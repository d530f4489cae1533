from typing import Any

from torch.nn.modules import Module as Module
from torch.nn.parameter import Parameter as Parameter

def __getattr__(name: str) -> Any: ...
