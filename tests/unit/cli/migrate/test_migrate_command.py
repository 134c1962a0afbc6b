"""`topogate migrate kueue` as a person types it, without a cluster."""

import io
import json

import pytest
import yaml
from rich.console import Console
from support.migrating import configuration, group, migrated, of_kueue
from typer.testing import CliRunner

from cli.main import app
from cli.migrate.apply_objects import merge_settings
from cli.migrate.rendering import count_objects, render_report
from cli.output import Failure

FLAVOR = of_kueue("ResourceFlavor", "f0", {"topologyName": "t", "nodeLabels": {"a": "b"}})
TOPOLOGY = of_kueue("Topology", "t", {"levels": [{"nodeLabel": "rack"}]})
QUEUE = of_kueue("ClusterQueue", "q", {"namespaceSelector": {}, "resourceGroups": [group("4")]})
REFUSED = of_kueue("ClusterQueue", "r", {"unheard": 1})


@pytest.fixture
def write(tmp_path):
    def written(*bodies):
        path = tmp_path / "in.yaml"
        path.write_text(yaml.safe_dump_all(bodies))
        return str(path)

    return written


def call(*words):
    return CliRunner().invoke(app, ["migrate", "kueue", *words])


def test_yaml_has_objects_alone_and_the_report_goes_to_stderr(write):
    found = call("-f", write(FLAVOR, TOPOLOGY, QUEUE, configuration()), "-o", "yaml")
    assert found.exit_code == 0
    objects = [*yaml.safe_load_all(found.stdout)]
    assert [(one["apiVersion"], one["kind"]) for one in objects] == [
        ("topogate.dev/v1alpha1", "ResourceFlavor"),
        ("topogate.dev/v1alpha1", "ClusterQueue"),
    ]
    assert "#   waitForPodsReadyTimeoutSeconds: 1800\n" in found.stdout
    assert "4 objects: 1 taken, 3 changed, 0 refused, 0 left" in found.stderr


def test_json_has_a_row_for_each_value_and_refusals_end_with_3(write):
    found = call("-f", write(QUEUE, REFUSED), "--dry-run", "-o", "json")
    assert found.exit_code == 3
    data = json.loads(found.stdout)
    assert [one["metadata"]["name"] for one in data["objects"]] == ["q"]
    rows = {(row["name"], row["field"]): row for row in data["rows"]}
    assert rows["q", "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"]["outcome"] == "taken"
    assert rows["r", ""]["outcome"] == "refused"
    assert rows["r", ""]["where"].endswith("in.yaml:16")
    assert data["settings"] == {}


def test_the_table_shows_objects_changes_and_refusals(write):
    found = call("-f", write(FLAVOR, TOPOLOGY, QUEUE, REFUSED))
    assert found.exit_code == 3
    assert "spec.topologyName" in found.stdout
    assert "does not know the field" in found.stdout
    assert "in.yaml:" in found.stdout
    assert "nominalQuota" not in found.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--apply", "--check"), "--apply and --check exclude each other"),
        (("--move", "--back"), "exclude each other"),
        (("--check", "-f", "x"), "leave -f out"),
        (("--move", "-f", "x"), "leave -f out"),
        (("--skip-refused",), "--skip-refused goes with --apply alone"),
        (("--overwrite", "--dry-run"), "--overwrite goes with --apply alone"),
        (("team-a",), "QUEUE goes with --move or --back alone"),
        (("--back", "--shared-nodes"), "--shared-nodes goes with --move alone"),
        (("--yes", "--move"), "--yes goes with --finish alone"),
        (("--keep-kueue",), "--keep-kueue goes with --finish alone"),
        (("-f", "/nowhere/x.yaml"), "/nowhere/x.yaml"),
    ],
)
def test_what_does_not_go_together_is_told(words, message):
    found = call(*words)
    assert isinstance(found.exception, Failure)
    assert message in str(found.exception)


def test_two_configurations_are_one_too_many(write, tmp_path):
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(configuration(fairSharing={})))
    found = call("-f", write(configuration()), "-f", str(tmp_path / "two.yaml"))
    assert "there are 2 Configurations of Kueue" in str(found.exception)


def test_a_reason_that_the_object_says_is_not_said_again_for_its_fields():
    console = Console(file=io.StringIO(), width=160, color_system=None)
    report = migrated(REFUSED, of_kueue("MultiKueueConfig", "m", {"clusters": ["a", "b"]}))
    console.print(render_report(report))
    assert console.file.getvalue().count("does not know the field") == 1
    assert console.file.getvalue().count("in its own cluster only") == 1
    assert count_objects(report) == "2 objects: 0 taken, 0 changed, 2 refused, 0 left"


CONFIG = "# ours\ndomain: kueue.x-k8s.io\nnamespace: topogate-system  # here\n"


def test_settings_are_added_below_the_comments_of_others():
    text, kept = merge_settings(CONFIG, {"fairSharing": True}, "topogate-system")
    assert text == f"{CONFIG}fairSharing: true\n"
    assert kept == []
    assert merge_settings(text, {"fairSharing": True}, "topogate-system") == (text, [])


def test_a_setting_that_has_another_value_is_told_and_replaced_on_request():
    text, kept = merge_settings(f"{CONFIG}fairSharing: false\n", {"fairSharing": True}, "topogate-system")
    assert kept == ["fairSharing is False, and Kueue's is True"]
    assert yaml.safe_load(text)["fairSharing"] is True


@pytest.mark.parametrize("text", ["", "{}", "{domain: kueue.x-k8s.io}", "domain: kueue.x-k8s.io"])
def test_settings_of_any_form_are_merged(text):
    new, _ = merge_settings(text, {"fairSharing": True}, "topogate-system")
    assert yaml.safe_load(new) == {**(yaml.safe_load(text) or {}), "fairSharing": True}


@pytest.mark.parametrize("text", ["unheard: 1", "- a", "a: [", "fairSharing: 5"])
def test_settings_that_are_wrong_stay_as_they_are(text):
    with pytest.raises(Failure, match=r"ConfigMap topogate-system/topogate-config.*nothing was applied"):
        merge_settings(text, {"queueHoldSeconds": 5}, "topogate-system")


@pytest.mark.parametrize("text", ["1e3", "y", "N", "0o17", ".5e3", "+1e5", "0X1F", "00e12", "1.e5", "+.5", "-1E+3"])
def test_what_kubectl_would_take_for_a_number_is_written_in_quotes(write, text):
    body = of_kueue("ResourceFlavor", "f", {})
    body["metadata"]["annotations"] = {"note": text}
    found = call("-f", write(body), "-o", "yaml")
    assert f"    note: '{text}'\n" in found.stdout
