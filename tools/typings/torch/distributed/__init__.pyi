from typing import Any

from torch.distributed.distributed_c10d import ProcessGroup as ProcessGroup
from torch.distributed.distributed_c10d import Store as Store
from torch.distributed.distributed_c10d import Work as Work

def __getattr__(name: str) -> Any: ...
