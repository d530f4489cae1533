"""Routes of the admin API that read: nodes, schemas, settings, metrics, and the guide for agents."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from monarch.extension.masking import MASK, is_secret
from monarch.telemetry._http import models, openapi
from monarch.telemetry._http.calls import Call, Handler, Reply
from monarch.telemetry._http.parts import Settings, need
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.routes import MARKDOWN, TEXT
from monarch.telemetry._http.schema import document
from monarch.telemetry._http.stacks import proc_of

# The share of the remaining time of a request for its question; the rest is for the answer.
_SHARE = 0.9


def health(_: Call) -> models.HealthAnswer:
    return {"status": "ok"}


def api(_: Call) -> Reply:
    return Reply(openapi.stored())


def root(call: Call) -> models.NodePayload:
    return call.parts.nodes.root(timeout=call.remaining * _SHARE)


def node(call: Call) -> models.NodePayload:
    found = call.parts.nodes.node(call.path["reference"], timeout=call.remaining * _SHARE)
    if found is None:
        raise Problem.not_found(f"there is no node {call.path['reference']!r}")
    return found


def tree(call: Call) -> Reply:
    return Reply(call.parts.nodes.tree(timeout=call.remaining * _SHARE).encode(errors="replace"), TEXT)


def admin(call: Call) -> models.AdminInfo:
    parts = call.parts
    return {"actor_id": parts.actor_id, "proc_id": parts.proc_id, "host": parts.host, "url": call.base_url}


def config(call: Call) -> models.ConfigAnswer:
    settings: Settings = need(call.parts.settings, "settings of procs")
    entries = settings.config(proc_of(call, call.path["proc"]), timeout=call.remaining)
    return {"entries": [_masked(call, entry) for entry in entries]}


def _masked(call: Call, entry: models.ConfigEntry) -> models.ConfigEntry:
    """The entry without secrets: those known by the name of the setting, and those in the text of a value."""
    found: Any = dict(entry)
    for field in ("value", "default_value"):
        value = found.get(field)
        if isinstance(value, str):
            found[field] = call.state.masking.named(entry["name"], value)
        elif value is not None and is_secret(entry["name"]):
            found[field] = MASK
    return found


def metrics(call: Call) -> Reply:
    content_type, data = need(call.parts.metrics, "metrics")(call.accept)
    return Reply(data, content_type)


def skill(call: Call) -> Reply:
    """The guide, with the URL under which the client has come."""
    text = files("monarch.telemetry._http").joinpath("skill.md").read_text(encoding="utf-8")
    return Reply(text.replace("{url}", call.base_url).encode(), MARKDOWN)


def schema(_: Call) -> dict[str, Any]:
    return document(models.NodePayload)


def schema_admin(_: Call) -> dict[str, Any]:
    return document(models.AdminInfo)


def schema_error(_: Call) -> dict[str, Any]:
    return document(models.ErrorAnswer)


HANDLERS: dict[str, Handler] = {
    "health": health,
    "api_health": health,
    "openapi": api,
    "root": root,
    "node": node,
    "tree": tree,
    "admin": admin,
    "config": config,
    "metrics": metrics,
    "skill": skill,
    "schema": schema,
    "schema_admin": schema_admin,
    "schema_error": schema_error,
}
