"""Linear layers whose weights are the part of a rank."""

import torch
from torch import nn


class _Linear(nn.Module):
    def __init__(self, rows: int, columns: int, tp_rank: int, tp_size: int) -> None:
        super().__init__()
        self.tp_rank, self.tp_size = tp_rank, tp_size
        self.weight = nn.Parameter(torch.zeros(rows, columns))


class ColumnParallelLinear(_Linear):
    pass


class QKVParallelLinear(ColumnParallelLinear):
    def __init__(self, output_sizes: list[int], columns: int, tp_rank: int, tp_size: int) -> None:
        super().__init__(sum(output_sizes) // tp_size, columns, tp_rank, tp_size)
        self.output_sizes = output_sizes


class RowParallelLinear(_Linear):
    pass
