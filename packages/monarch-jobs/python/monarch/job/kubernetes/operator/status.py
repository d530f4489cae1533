"""The status of a MonarchMesh: a pure function of the mesh, its StatefulSet, and what went wrong."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

READY, WAITING, ALL_READY = "Ready", "Waiting", "AllReady"
LONGEST_MESSAGE = 4096


def mesh_status(mesh: Object, stateful_set: Object | None, problem: str, now: str) -> Object:
    """`problem` is empty, or why the objects of the mesh cannot be made; `now` is the time of a condition that changes (RFC 3339)."""
    wanted: int = mesh["spec"]["replicas"]
    found: Object = (stateful_set or {}).get("status") or {}
    there, ready = int(found.get("replicas") or 0), int(found.get("readyReplicas") or 0)
    # The controller of StatefulSets may not have seen the last change of its object yet.
    is_current = stateful_set is not None and found.get("observedGeneration") == stateful_set["metadata"].get("generation")
    all_ready = not problem and is_current and ready == there == wanted
    message = problem[:LONGEST_MESSAGE] or f"{ready} of {wanted} pods are ready"
    generation = mesh["metadata"].get("generation", 0)
    before: Object = mesh.get("status") or {}
    conditions: list[Object] = before.get("conditions") or []
    nothing: Object = {}
    old = next((one for one in conditions if one.get("type") == READY), nothing)
    word = "True" if all_ready else "False"
    ready_condition = {
        "type": READY,
        "status": word,
        "reason": ALL_READY if all_ready else WAITING,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == word else now,
    }
    others = [one for one in conditions if one.get("type") != READY]
    return {"replicas": there, "readyReplicas": ready, "observedGeneration": generation, "conditions": [*others, ready_condition]}
