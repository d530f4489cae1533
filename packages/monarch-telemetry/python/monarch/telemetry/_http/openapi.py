"""The OpenAPI document: `openapi.json` next to this module, made from the table of routes.

`python -m monarch.telemetry._http.openapi > openapi.json` writes it; a test compares the two.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from typing import Any, cast

from monarch.telemetry._http import models
from monarch.telemetry._http.routes import ARROW, JSON, ROUTES, Route
from monarch.telemetry._http.schema import fields, schema

_PARAMETER = re.compile(r"{(\w+)}")
_MISSING = "There is no such thing"
_REFUSALS = {
    "400": "The request is malformed",
    "401": "The token is missing or wrong",
    "403": "The token has another scope, or the host or origin is foreign",
    "503": "What answers this is not there",
    "504": "There was no answer in time",
}


def document() -> dict[str, Any]:
    """The document as JSON."""
    known: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Monarch telemetry",
            "version": "1",
            "description": "What a job does: its topology, SQL over its tables, stacks, metrics, and actions on it. "
            "Identifiers are numbers of 64 bits. The scope of a route is in `x-scope`.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": _responses(known),
            "schemas": dict(sorted(known.items())),
        },
    }


def _operation(route: Route, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": route.operation, "summary": route.summary, "x-scope": route.scope}
    if route.scope == "none":
        found["security"] = []
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _PARAMETER.findall(route.path)]
    if route.parameters is not None:
        parameters += [
            {"name": name, "in": "query", "required": required, "schema": schema(kind, known)}
            for name, (kind, required) in fields(route.parameters).items()
        ]
    if parameters:
        found["parameters"] = parameters
    if route.body == ARROW:
        found["requestBody"] = {"required": True, "content": {ARROW: {}}}
    elif route.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema(route.body, known)}}}
    content = {media: {"schema": schema(route.answer, known)} if media == JSON else {} for media in route.media}
    refusals = {"403": _REFUSALS["403"]} if route.scope == "none" else _REFUSALS
    if "{" in route.path:
        refusals = {**refusals, "404": _MISSING}
    found["responses"] = {
        "200": {"description": "The answer", "content": content},
        **{status: {"$ref": f"#/components/responses/{_response(status, route.is_dashboard)}"} for status in sorted(refusals)},
    }
    return found


def _response(status: str, is_dashboard: bool) -> str:
    return f"{'Dashboard' if is_dashboard else 'Admin'}{status}"


def _responses(known: dict[str, Any]) -> dict[str, Any]:
    """The refusals of both APIs, which have errors of different forms."""
    models_of = {False: models.ErrorAnswer, True: models.TextErrorAnswer}
    return {
        _response(status, is_dashboard): {"description": text, "content": {JSON: {"schema": schema(model, known)}}}
        for is_dashboard, model in models_of.items()
        for status, text in sorted({**_REFUSALS, "404": _MISSING}.items())
    }


def text() -> str:
    """The file: a line for each operation and schema, so that a change of one is a change of one line."""
    return f"{_lines(document(), 3)}\n"


def _lines(value: Any, depth: int) -> str:
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value)
    parts = cast("dict[str, Any]", value)
    inner = ",\n".join(f"{json.dumps(name)}: {_lines(one, depth - 1)}" for name, one in parts.items())
    return f"{{\n{inner}\n}}"


def stored() -> bytes:
    """The file next to this module."""
    return files("monarch.telemetry._http").joinpath("openapi.json").read_bytes()


if __name__ == "__main__":
    sys.stdout.write(text())
