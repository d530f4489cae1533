"""Handles can be sent: as arguments, inside other objects, as results, and to meshes that do not exist yet."""

from __future__ import annotations

from monarch.actor import Actor, context, current_rank, endpoint, this_host, this_proc


class Store(Actor):
    """One part of a table that is spread over a mesh."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    @endpoint
    def put(self, key: str, value: int) -> None:
        self.rows[key] = value

    @endpoint
    def total(self) -> int:
        return sum(self.rows.values())


class Table(Actor):
    """Finds the part of a key; it got the mesh of parts when it was spawned."""

    def __init__(self, stores: Store) -> None:
        self.stores = stores

    @endpoint
    def put(self, key: str, value: int) -> None:
        part = sum(key.encode()) % self.stores.size()
        self.stores.slice(parts=part).put.call_one(key, value).get()

    @endpoint
    def totals(self) -> list[int]:
        return list(self.stores.total.call().get().values())


class Client(Actor):
    """Writes into a table whose handle it got inside a dict."""

    @endpoint
    def write(self, tables: dict[str, Table]) -> str:
        for name, table in tables.items():
            table.put.call_one(f"{name} of writer {current_rank().rank}", current_rank().rank + 1).get()
        return f"wrote {', '.join(tables)}"


class Team(Actor):
    """Owns actors: it spawns them next to itself and returns their handle. They end with their owner."""

    @endpoint
    def hire(self) -> Store:
        return this_proc().spawn("own_store", Store)

    @endpoint
    def owner(self) -> str:
        return context().actor_instance.name


def main() -> None:
    stores = this_host().spawn_procs(per_host={"parts": 3}).spawn("stores", Store)
    # `this_proc()` is the process of this script: the table is here, its parts are elsewhere.
    table = this_proc().spawn("table", Table, stores)
    archive = this_proc().spawn("archive", Table, stores.slice(parts=slice(0, 1)))

    writers = this_host().spawn_procs(per_host={"writers": 2}).spawn("writers", Client)
    for point, answer in writers.write.call({"table": table, "archive": archive}).get().items():
        print(f"{point}: {answer}")
    # The archive is the first part of the same stores, so the table counts its rows too.
    print(f"table: {table.totals.call_one().get()}, archive: {archive.totals.call_one().get()}")

    # A handle as a result: the actor behind it belongs to the team, but the client can call it.
    team = this_host().spawn_procs().spawn("team", Team)
    hired = team.hire.call_one().get()
    hired.put.call_one("answer", 42).get()
    print(f"{team.owner.call_one().get()} owns a store with {hired.total.call_one().get()} in it")

    # The script can call an actor of another owner, but not stop it.
    try:
        hired.stop().get()
    except NotImplementedError as refused:
        print(f"refused: {refused}")


if __name__ == "__main__":
    main()
