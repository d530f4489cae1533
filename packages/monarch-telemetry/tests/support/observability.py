"""The folder examples/observability: its manifests and dashboards, read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.plain_yaml import documents

from tools.project import ROOT

FOLDER = ROOT / "examples" / "observability"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
CONFIGS = FOLDER / "config"
_VARIABLES = {"$__rate_interval": "5m", "$__range": "1h"}
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")


def read(path: Path) -> Any:
    """The only document of a file."""
    (found,) = documents(path.read_text(encoding="utf-8"))
    return found


def manifests() -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` makes, but for the config maps."""
    return [one for name in read(FOLDER / "kustomization.yaml")["resources"] for one in documents((FOLDER / name).read_text())]


def dashboard(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def plain(query: str) -> str:
    """A query without the variables of Grafana; those in selectors match everything."""
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    return re.sub(r"\"\$\w+\"", '".*"', query)


def targets(path: Path) -> Iterator[tuple[str, str, str]]:
    """The kind of source, the query and the legend of each target of each panel."""
    for panel in dashboard(path)["panels"]:
        for target in panel["targets"]:
            yield target["datasource"]["type"], plain(target["expr"]), target.get("legendFormat", "")


def variables(path: Path) -> Iterator[str]:
    """The queries of the variables of a dashboard as PromQL: by the label that they list."""
    for one in dashboard(path)["templating"]["list"]:
        found = _LABEL_VALUES.fullmatch(plain(one["query"]))
        assert found is not None, one["query"]
        yield f"count by ({found['label']}) ({found['selector']})"


def queries(path: Path) -> list[str]:
    """All queries of PromQL of a dashboard."""
    return [query for kind, query, _ in targets(path) if kind == "prometheus"] + [*variables(path)]


def rules() -> list[dict[str, Any]]:
    return [rule for group in read(CONFIGS / "rules.yaml")["groups"] for rule in group["rules"]]
