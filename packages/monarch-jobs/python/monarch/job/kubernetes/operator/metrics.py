"""Numbers of the operator, as text of Prometheus."""

from __future__ import annotations

import threading

_HELP = {
    "monarch_operator_reconciles_total": ("counter", "Looks at a MonarchMesh, by their result."),
    "monarch_operator_reconcile_seconds_total": ("counter", "Seconds that looks at MonarchMeshes took."),
    "monarch_operator_meshes": ("gauge", "MonarchMeshes that there are."),
    "monarch_operator_meshes_ready": ("gauge", "MonarchMeshes whose pods are all ready."),
    "monarch_operator_leader": ("gauge", "1 where this operator is the one that works."),
}


class Metrics:
    """For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {(name, ""): 0.0 for name in _HELP if not name.endswith("reconciles_total")}

    def add(self, name: str, amount: float, labels: str = "") -> None:
        """To a counter; `labels` as in the text, `result="ok"`."""
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0.0) + amount

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name, ""] = value

    def text(self) -> str:
        with self._lock:
            values = dict(self._values)
        lines: list[str] = []
        for name, (kind, meaning) in _HELP.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [
                f"{name}{f'{{{labels}}}' if labels else ''} {value:g}" for (of, labels), value in sorted(values.items()) if of == name
            ]
        return "\n".join(lines) + "\n"
