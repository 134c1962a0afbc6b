"""The chart's generated part, and that alerts and dashboards ask for metrics that there are."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from agent.metrics import AgentMetrics
from crds.constants import NAMESPACE
from manifests import chart, generate, values
from manifests.chart import ChartError, block, document, guarded, swap, word
from ungater.metric_table import MetricTable
from ungater.metrics import ControllerMetrics as UngaterMetrics
from webhook.metrics import WebhookMetrics

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "manifests" / "monitoring"


def test_generated_files_are_what_the_manifests_make_of_them():
    assert generate.stale(generate.files()) == []


def test_what_nothing_makes_any_more_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(chart, "REPOSITORY", tmp_path)
    monkeypatch.setattr(chart, "CHART", tmp_path)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "old.yaml").write_text("# Generated from base/old.yaml\n")
    (tmp_path / "templates" / "own.yaml").write_text("{{- fail }}\n")
    made = tmp_path / "templates" / "new.yaml"
    assert generate.stale({made: "x"}) == [
        "templates/new.yaml is not what the manifests make of it",
        "templates/old.yaml is made from nothing any more",
    ]


def test_every_manifest_is_in_the_chart():
    """All but the namespace, which helm makes, and samples."""
    made = {text.split()[3] for text in chart.templates().values()}
    there = {
        str(path.relative_to(ROOT))
        for folder in ("crds/bases", *chart.FOLDERS[1:])
        for path in (ROOT / folder).glob("*.yaml")
        if path.name != "kustomization.yaml"
    }
    assert there - made == {"manifests/base/namespace.yaml"}


@pytest.mark.parametrize("folder", [name for name in chart.FOLDERS if name != "crds"])
def test_every_file_is_listed(folder):
    listed = yaml.safe_load((ROOT / folder / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in (ROOT / folder).glob("*.yaml")} == {*listed, "kustomization.yaml"} - {"../../crds"}


def test_the_chart_has_the_version_of_the_program():
    made = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert made["version"] == made["appVersion"] == version


def test_every_value_is_explained():
    schema = values.schema()
    text = generate.values_text()
    assert yaml.safe_load(text) == values.defaults()
    for path, comment in values.comments().items():
        assert comment.endswith("."), path
    assert set(schema["properties"]) == {*values.defaults(), "global"}


# --- edits -----------------------------------------------------------------------------------------------------------

TEXT = """a:
- b: 1
  c:
    d: x # why
  e:
  - f
g: 2
---
kind: Secret
h: 3
"""


def test_swap_keeps_the_indent():
    assert swap("c:\n  d: x # why", "c: {{ .y }}\n{{- x | nindent 0 }}")(TEXT).splitlines()[2:4] == [
        "  c: {{ .y }}",
        "  {{- x | nindent 2 }}",
    ]


def test_block_takes_what_is_below():
    assert "f" not in block("e:", "e: {{ .y }}")(TEXT).split("g: 2", maxsplit=1)[0].split("e: {{ .y }}")[1]
    assert block("c:", "")(TEXT).splitlines()[:3] == ["a:", "- b: 1", "  e:"]


def test_guarded_keeps_a_list_item_together():
    lines = guarded("- b: 1", ".x")(TEXT).splitlines()
    assert (lines[1], lines[7]) == ("{{- if .x }}", "{{- end }}")


def test_document_is_guarded_as_a_whole():
    assert document("kind: Secret", ".x")(TEXT).endswith("---\n{{- if .x }}\nkind: Secret\nh: 3\n{{- end }}\n")


@pytest.mark.parametrize(
    "edit",
    [
        swap("g: 3", ""),
        swap("g: 2", "", count=2),
        block("z:", ""),
        guarded("- z", ""),
        document("z", ""),
        word("zz", ""),
    ],
)
def test_an_edit_that_meets_nothing_fails(edit):
    with pytest.raises(ChartError, match=r"adapt manifests/chart\.py"):
        edit(TEXT)


# --- alerts and dashboards -------------------------------------------------------------------------------------------


def metrics():
    """Name -> labels of every series that components can show."""
    found: dict[str, set[str]] = {}
    webhook = WebhookMetrics(("/mutate-job",), lambda: 1.0, lambda: 0, lambda: False)
    for made in (AgentMetrics(), UngaterMetrics()):
        for family in made.registry.collect():
            if not family.name.startswith("topogate_"):
                continue  # of the process, by prometheus-client
            collector = made.registry._names_to_collectors[family.name]
            labels = set(
                collector.names if isinstance(collector, MetricTable) else getattr(collector, "_labelnames", ())
            )
            for suffix in _SUFFIXES[family.type]:
                found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    for family in webhook.collect():
        for sample in family.samples:
            found[sample.name] = set(sample.labels)
    return found


_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
# What Prometheus itself adds.
TARGET = {"namespace", "pod", "instance", "job"}


def rules():
    (rule,) = yaml.safe_load_all((MONITORING / "alerts.yaml").read_text())
    return [each for group in rule["spec"]["groups"] for each in group["rules"]]


def panels():
    for path in MONITORING.glob("dashboards/*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield panel["title"], target["expr"], target["legendFormat"]


def test_each_panel_of_a_dashboard_has_an_id_and_a_place_of_its_own():
    for path in MONITORING.glob("dashboards/*.json"):
        found = json.loads(path.read_text())["panels"]
        assert len({one["id"] for one in found}) == len(found), path.name
        assert len({(one["gridPos"]["x"], one["gridPos"]["y"]) for one in found}) == len(found), path.name


def asked(expression):
    """(metric, labels of its selector) in an expression."""
    for name, selector in re.findall(r"\b(topogate_\w+)(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*=", selector))


def grouped(expression):
    return {label.strip() for text in re.findall(r"by \(([^)]*)\)", expression) for label in text.split(",")}


EXPRESSIONS = [(rule["alert"], rule["expr"], " ".join(rule["annotations"].values())) for rule in rules()] + [*panels()]


@pytest.mark.parametrize(("name", "expression", "text"), EXPRESSIONS, ids=[each[0] for each in EXPRESSIONS])
def test_every_expression_asks_for_what_there_is(name, expression, text):
    known = metrics()
    found = list(asked(expression))
    assert found
    for metric, labels in found:
        assert metric in known, metric
        assert labels <= known[metric], (metric, labels)
    labels = set.union(*(known[metric] for metric, _ in found)) | TARGET
    assert grouped(expression) <= labels
    shown = set(re.findall(r"\$labels\.(\w+)", text)) | set(re.findall(r"\{\{(\w+)\}\}", text))
    kept = grouped(expression) if "by (" in expression else labels
    assert shown <= kept, "a label that the expression has aggregated away"


def test_every_metric_is_seen_somewhere():
    used = {metric for _, expression, _ in EXPRESSIONS for metric, _ in asked(expression)}
    families = {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in metrics()}
    assert families == {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in used}


def test_the_page_of_metrics_lists_them_all_with_their_labels():
    rows = re.findall(r"^\| `(topogate_\w+)` \| (.*?) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert len(told) == len(rows)
    there = {}
    for name, labels in metrics().items():
        there[re.sub(r"_(bucket|count|sum)$", "", name)] = labels - {"le"}
    assert told == there


def test_every_alert_says_what_to_do():
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    runbooks = {
        heading.lower()
        for heading in re.findall(r"^## (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    }
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["alert"].lower() in runbooks
    assert runbooks == {name.lower() for name in names}


def test_monitors_find_the_pods():
    """Services select the components' pods, monitors the services, and ports have the names that are asked for."""
    objects = {}
    for path in (MONITORING / "services.yaml", MONITORING / "monitors.yaml", *(ROOT / "manifests").glob("*/*.yaml")):
        for obj in filter(None, yaml.safe_load_all(path.read_text())):
            objects[obj["kind"], obj.get("metadata", {}).get("name")] = obj
    for component, kind in (("webhook", "Deployment"), ("ungater", "Deployment"), ("agent", "DaemonSet")):
        service = objects["Service", f"topogate-{component}-metrics"]
        template = objects[kind, f"topogate-{component}"]["spec"]["template"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        (port,) = service["spec"]["ports"]
        assert ports[port["targetPort"]] == port["port"]
        monitor = objects["ServiceMonitor", f"topogate-{component}"]["spec"]
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [port["name"]]
    agent = objects["DaemonSet", "topogate-agent"]
    monitor = objects["ServiceMonitor", "topogate-agent"]["spec"]
    assert monitor["namespaceSelector"]["matchNames"] == [agent["metadata"]["namespace"]] == [f"{NAMESPACE}-agent"]
    assert objects["Service", "topogate-agent-metrics"]["metadata"]["namespace"] == agent["metadata"]["namespace"]


def test_the_registries_are_what_components_serve():
    assert b"topogate_leader" in generate_latest(UngaterMetrics().registry)


def test_the_hint_of_the_default_queue_has_the_rules_of_the_queue(monkeypatch, tmp_path):
    source = generate.DEFAULT_QUEUE.read_text(encoding="utf-8")
    changed = tmp_path / "policy.yaml"
    monkeypatch.setattr(generate, "DEFAULT_QUEUE", changed)
    monkeypatch.setattr(chart, "REPOSITORY", tmp_path)
    changed.write_text(source.replace("resources: [jobs]", "resources: [jobs, cronjobs]"), encoding="utf-8")
    policy, binding = yaml.safe_load_all(generate.hint_text())
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert ["jobs", "cronjobs"] in [one["resources"] for one in rules]
    assert (binding["spec"]["policyName"], binding["spec"]["validationActions"]) == ("topogate-default-hint", ["Warn"])
    for gone in ("mutations:\n", "topogate-default-queue", "---\n"):
        changed.write_text(source.replace(gone, ""), encoding="utf-8")
        with pytest.raises(chart.ChartError, match=r"^policy\.yaml: expected"):
            generate.hint_text()
