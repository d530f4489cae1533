"""The manifests and dashboards of examples/observability: they fit together, and name only what Monarch exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import observability, promql
from support.observability import CONFIGS, DASHBOARDS, FOLDER
from support.plain_yaml import documents

from monarch.telemetry._export.metric_names import METRICS
from tools.project import ROOT

PAGE = (ROOT / "docs" / "opentelemetry.md").read_text(encoding="utf-8")
EACH = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
# Attributes of log records and their resources, by their names in Loki.
LOG_LABELS = {"service_name", "host_name", "monarch_job", "monarch_mesh", "monarch_rank", "monarch_stream", "monarch_proc", "severity_text"}


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for one in observability.manifests():
        if one["kind"] in ("Deployment", "StatefulSet"):
            spec = one["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            yield one["metadata"]["name"], one["spec"], container


def ports() -> set[tuple[str, int]]:
    services = [one for one in observability.manifests() if one["kind"] == "Service"]
    return {(one["metadata"]["name"], port["port"]) for one in services for port in one["spec"]["ports"]}


def generated() -> dict[str, dict[str, Path]]:
    """The files of each config map, by their name in it."""
    found: dict[str, dict[str, Path]] = {}
    for one in observability.read(FOLDER / "kustomization.yaml")["configMapGenerator"]:
        pairs = [entry.partition("=") for entry in one["files"]]
        found[one["name"]] = {name if source else Path(name).name: FOLDER / (source or name) for name, _, source in pairs}
    return found


def test_kustomization_has_every_file() -> None:
    assert {*observability.read(FOLDER / "kustomization.yaml")["resources"]} == {
        path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"
    }
    used = {path for files in generated().values() for path in files.values()}
    # A Prometheus beside a job, outside of the cluster, has this one.
    assert used == {*CONFIGS.glob("*.yaml"), *DASHBOARDS} - {CONFIGS / "scrape.yaml"}


def test_pods_have_configuration_and_ports_without_rights() -> None:
    found = [*pods()]
    assert {name for name, _, _ in found} == {"otel-collector", "prometheus", "loki", "grafana"}
    for name, spec, container in found:
        template = spec["template"]
        assert spec["selector"]["matchLabels"] == template["metadata"]["labels"] == {"app": name}
        maps = {one["name"]: one["configMap"]["name"] for one in template["spec"]["volumes"] if "configMap" in one}
        assert {*maps.values()} <= {*generated()}
        assert {one["name"] for one in container["volumeMounts"]} == {*maps} | ({"data"} if "volumeClaimTemplates" in spec else set()) | {
            one["name"] for one in template["spec"]["volumes"] if "emptyDir" in one
        }
        files = {
            f"{mount['mountPath']}/{file}" if "subPath" not in mount else mount["mountPath"]
            for mount in container["volumeMounts"]
            if mount["name"] in maps
            for file in generated()[maps[mount["name"]]]
            if mount.get("subPath", file) == file
        }
        named = [word.partition("=")[2] for word in container.get("args", ()) if "config" in word]
        assert {*named} <= files
        assert container["readinessProbe"]["httpGet"]["port"] in {port["name"] for port in container["ports"]}
        assert {(name, port["containerPort"]) for port in container["ports"]} <= ports()
        rights = container["securityContext"]
        assert rights["capabilities"] == {"drop": ["ALL"]} and rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert template["spec"]["securityContext"]["runAsNonRoot"] and not template["spec"]["automountServiceAccountToken"]
        assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", container["image"])


def test_addresses_are_those_of_services() -> None:
    texts = "".join(path.read_text() for path in [*CONFIGS.glob("*.yaml"), *FOLDER.glob("*.md")])
    addresses = {(name, int(port)) for name, port in re.findall(r"\b([a-z-]+)(?:\.observability)?:(\d{4})\b", texts)}
    assert ("otel-collector", 9464) in addresses
    assert {(name, port) for name, port in addresses if name in {service for service, _ in ports()}} <= ports()
    assert {name for name, _ in addresses} <= {service for service, _ in ports()} | {"localhost"}


def test_collector_has_every_part_of_its_pipelines() -> None:
    config = observability.read(CONFIGS / "otel-collector.yaml")
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert {*names} <= {*config[kind]}
    statements = config["processors"]["transform/units"]["metric_statements"][0]["statements"]
    assert all(statement in PAGE for statement in statements)
    for one in METRICS:
        # A collector adds the long unit unless that word is in the name; Monarch counts the short one too.
        short = one.unit in ("us", "ns") and one.unit in re.split(r"[._]", one.name)
        matched = [text for text in statements if f'unit == "{one.unit}"' in text and re.search(text.split('"')[3], one.name)]
        assert len(matched) == short, one.name


@EACH
def test_queries_of_dashboards_name_what_is_exported(path: Path) -> None:
    found = observability.queries(path)
    assert len(found) > 5 and [problem for query in found for problem in promql.problems(query)] == []


@EACH
def test_legends_have_labels_of_their_queries(path: Path) -> None:
    known = promql.exported()
    for kind, query, legend in observability.targets(path):
        if kind == "prometheus":
            named = promql.named(query)
            labels = named.grouped or frozenset.intersection(*(known[metric] for metric, _ in named.selectors))
            assert {*re.findall(r"{{(\w+)}}", legend)} <= labels, query


@EACH
def test_dashboard_panels_have_known_sources_without_overlap(path: Path) -> None:
    board = observability.dashboard(path)
    sources = {(one["type"], one["uid"]) for one in observability.read(CONFIGS / "grafana-datasources.yaml")["datasources"]}
    used = [one for panel in board["panels"] for one in (panel["datasource"], *(target["datasource"] for target in panel["targets"]))]
    assert {(one["type"], one["uid"]) for one in used} <= sources
    assert [panel["id"] for panel in board["panels"]] == [*range(1, len(board["panels"]) + 1)]
    cells: set[tuple[int, int]] = set()
    for at in (panel["gridPos"] for panel in board["panels"]):
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells and at["x"] + at["w"] <= 24
        cells |= mine
    names = {one["name"] for one in board["templating"]["list"]}
    assert {*re.findall(r"\$([a-z]\w*)", path.read_text())} == names


def test_dashboards_are_those_of_the_readme() -> None:
    boards = [observability.dashboard(path) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards) == 5
    readme = (FOLDER / "README.md").read_text()
    assert all(f"dashboards/{path.name}" in readme for path in DASHBOARDS)


def test_queries_of_logs_name_what_is_exported() -> None:
    logs = [query for path in DASHBOARDS for kind, query, _ in observability.targets(path) if kind == "loki"]
    logs += [query.replace("\\|", "|") for query in re.findall(r"\| Loki \| `(.+)` \|", PAGE)]
    assert len(logs) == 3
    for query in logs:
        labels = {*re.findall(r"(\w+)\s*(?:=~|!=|=)", query)}
        assert labels and labels <= LOG_LABELS, query


def test_alerts_name_what_is_exported() -> None:
    rules = observability.rules()
    assert [problem for rule in rules for problem in promql.problems(rule["expr"])] == []
    for rule in rules:
        grouped = promql.named(rule["expr"]).grouped or {"instance", "job"}
        assert {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])} <= grouped, rule["alert"]


def test_queries_of_the_page_name_what_is_exported() -> None:
    found = re.findall(r"\| Prometheus \| `(.+)` \|", PAGE)
    assert len(found) == 6 and [problem for query in found for problem in promql.problems(query)] == []


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("py_mesages_handled_total", "no metric 'py_mesages_handled_total'"),
        ("rate(py_messages_handled[5m])", "no metric 'py_messages_handled'"),
        ('sum(py_messages_handled_total{host="a"})', "py_messages_handled_total has no label 'host'"),
        ("sum by (rank) (py_messages_handled_total)", "has no label 'rank'"),
        ("up / on (mesh) py_messages_handled_total", "up has no label 'mesh'"),
        ("histogram_quantile(0.9, endpoint_message_size_bytes_bucket)", "no metric 'endpoint_message_size_bytes_bucket'"),
        ("1 + vector(1)", "no metric in"),
    ],
)
def test_wrong_name_is_found(query: str, problem: str) -> None:
    assert problem in " ".join(promql.problems(query))


def test_names_of_a_query() -> None:
    query = 'sum by (le, a) (rate(m_bucket{x="y{}", z=~"(b)"}[5m])) / ignoring (q) group_left m:n > bool 1e9 or vector(0) offset 5m'
    assert promql.named(query) == (
        (("m_bucket", frozenset({"x", "z"})), ("m:n", frozenset())),
        frozenset({"le", "a", "q"}),
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: [b]",
        "a: yes",
        "a: 'b'",
        "a:\n- b",
        "a: b: c",
        "a: b #c",
        "a:\nb: c",
        "a: b\n  c: d",
        "a: |\n  b",
        "a: b\na: c",
        "- a\nb: c",
        "a: &x b",
    ],
)
def test_ambiguous_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line "):
        documents(text)


def test_plain_yaml() -> None:
    text = '# one\na:\n  - b: 1\n    "c d": "2"\n  - true\ne: {}\n---\n- x y z=1\n- -0.5\n'
    assert documents(text) == [{"a": [{"b": 1, "c d": "2"}, True], "e": {}}, ["x y z=1", -0.5]]
