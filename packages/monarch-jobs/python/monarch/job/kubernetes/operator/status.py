"""The status of a MonarchMesh: a pure function of the mesh, its StatefulSet, and what went wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

Object = dict[str, Any]

READY, WAITING, ALL_READY = "Ready", "Waiting", "AllReady"
# The reasons why the objects of a mesh cannot be made: the template, an object of that name with another owner, the server's refusal, or a
# defect.
INVALID_TEMPLATE, NOT_OWNED, REFUSED, FAILED = "InvalidTemplate", "NotAdopted", "Refused", "Failed"
LONGEST_MESSAGE = 4096


class Problem(NamedTuple):
    """Why the objects of a mesh cannot be made; `reason` is one word."""

    reason: str
    message: str


def mesh_status(mesh: Object, stateful_set: Object | None, problem: Problem | None, now: str) -> Object:
    """`now` is the time of a condition that changes (RFC 3339)."""
    wanted: int = mesh["spec"]["replicas"]
    found: Object = (stateful_set or {}).get("status") or {}
    there, ready = int(found.get("replicas") or 0), int(found.get("readyReplicas") or 0)
    # The controller of StatefulSets may not have seen the last change of its object yet.
    is_current = stateful_set is not None and found.get("observedGeneration") == stateful_set["metadata"].get("generation")
    all_ready = problem is None and is_current and ready == there == wanted
    message = f"{ready} of {wanted} pods are ready" if problem is None else problem.message[:LONGEST_MESSAGE]
    generation = mesh["metadata"].get("generation", 0)
    before: Object = mesh.get("status") or {}
    conditions: list[Object] = before.get("conditions") or []
    old = ready_condition(mesh)
    word = "True" if all_ready else "False"
    condition = {
        "type": READY,
        "status": word,
        "reason": ALL_READY if all_ready else WAITING if problem is None else problem.reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == word else now,
    }
    others = [one for one in conditions if one.get("type") != READY]
    return {"replicas": there, "readyReplicas": ready, "observedGeneration": generation, "conditions": [*others, condition]}


def ready_condition(mesh: Object) -> Object:
    """The condition that the mesh has; empty where it has none."""
    status: Object = mesh.get("status") or {}
    conditions: list[Object] = status.get("conditions") or []
    nothing: Object = {}
    return next((one for one in conditions if one.get("type") == READY), nothing)
