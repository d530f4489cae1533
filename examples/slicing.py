"""Meshes are labelled arrays: calls go to slices of them, and answers have the shape of the called slice."""

from __future__ import annotations

from monarch.actor import Actor, context, current_rank, endpoint, this_host


class Cell(Actor):
    """One element of a 2 x 4 mesh."""

    @endpoint
    def where(self) -> str:
        # Two positions: in the mesh that was called just now, and in the mesh that was spawned.
        return f"{dict(current_rank())} of the call, {dict(context().actor_instance.rank)} of the spawn"

    @endpoint
    def number(self) -> int:
        return context().actor_instance.rank.rank


def main() -> None:
    cells = this_host().spawn_procs(per_host={"rows": 2, "columns": 4}).spawn("cells", Cell)
    print(f"spawned: {cells.extent}, {cells.size()} cells, {cells.size('columns')} columns")

    # An index removes its dimension, a slice keeps it; steps work too.
    row = cells.slice(rows=1)
    even = cells.slice(columns=slice(0, None, 2))
    one = cells.slice(rows=1, columns=2)
    print(f"row: {row.extent}, even columns: {even.extent}, one cell: {one.extent}")
    print(f"seen from the row:\n  {row.slice(columns=1).where.call_one().get()}\n  {row.where.call().get().item(columns=1)}")

    # Other names and shapes for the same actors; no actor is copied or spawned.
    line = cells.flatten("cell")
    print(f"flattened: {line.extent}, without the first: {line.slice(cell=slice(1, None)).number.call().get().extent}")
    print(f"columns split in outer and inner: {line.split(cell=('outer', 'inner'), inner=2).extent}")
    print(f"renamed: {cells.rename(rows='hosts').extent}")

    # The answers of a call are a ValueMesh: points and values, with the same slicing.
    numbers = cells.number.call().get()
    for point, value in numbers.items():
        print(f"  {point} -> {value}")
    print(f"item(rows=1, columns=0) = {numbers.item(rows=1, columns=0)}")
    print(f"second row = {list(numbers.slice(rows=1).values())}, sum = {sum(numbers.values())}")

    # Calls to slices that share no actor do not affect each other.
    left, right = cells.slice(columns=0).number.call(), cells.slice(columns=slice(1, None)).number.call()
    print(f"left {list(left.get().values())}, right {list(right.get().values())}")


if __name__ == "__main__":
    main()
