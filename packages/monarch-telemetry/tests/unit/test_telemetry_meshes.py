"""A host that runs for long knows a bounded number of meshes: those with members on it, and the last others."""

from __future__ import annotations

from monarch.telemetry._ingest.entities import Meshes
from monarch.telemetry._store.entities import Entities
from monarch.telemetry._tables.facts import PROCS


def test_meshes_without_members_are_forgotten_oldest_first() -> None:
    gone: list[int] = []
    meshes = Meshes(gone.append, most=2)
    for number in range(5):
        meshes.made(number, f"m{number}", "{}")
    assert (gone, meshes.names, set(meshes.shapes)) == ([0, 1, 2], {3: "m3", 4: "m4"}, {3, 4})


def test_mesh_is_known_until_its_last_members_end() -> None:
    gone: list[int] = []
    meshes = Meshes(gone.append, most=1)
    meshes.made(1, "workers", '{"gpus": 2}')
    meshes.joined(1, "workers")
    meshes.joined(1, "workers")
    for number in range(2, 5):
        meshes.made(number, "others", "{}")
    meshes.left(1)
    meshes.made(5, "others", "{}")
    assert 1 not in gone and meshes.shapes[1] == '{"gpus": 2}'
    meshes.left(1)
    meshes.made(6, "others", "{}")
    assert gone == [2, 3, 4, 5, 1] and set(meshes.names) == {6}


def test_remote_mesh_has_the_name_of_its_members() -> None:
    gone: list[int] = []
    meshes = Meshes(gone.append, most=1)
    meshes.joined(1, "workers")
    meshes.made(2, "others", "{}")
    assert meshes.names[1] == "workers" and 1 not in meshes.shapes
    meshes.left(1)
    assert gone == [2] and set(meshes.names) == {1}


def test_dropped_entity_is_counted_once() -> None:
    procs = Entities(PROCS.schema())
    procs.put(1, {"proc_id": 1})
    procs.put(2, {"proc_id": 2}, ended=True)
    for key in (1, 1, 2, 3):
        procs.drop(key)
    assert (procs.rows, procs.dropped, procs.get(1), procs.batches()) == (0, 2, None, [])
