"""What an installation beside Kueue has more."""

from pathlib import Path

import yaml

from manifests import render
from manifests.render import InstallOptions

FOLDER = Path(__file__).parents[3] / "manifests" / "kueue"
BESIDE = InstallOptions(domain="topogate.dev", namespace="tg", kueue=True)


def named(options):
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in render.objects(options)}


def test_every_file_is_listed():
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in FOLDER.iterdir()} == {*listed, "kustomization.yaml"}


def test_the_group_of_kueues_classes_is_no_domain():
    for options in (InstallOptions(), BESIDE, InstallOptions(domain="example.com")):
        rules = named(options)["ClusterRole", "topogate-ungater"]["rules"]
        groups = [rule["apiGroups"] for rule in rules if "workloadpriorityclasses" in rule["resources"]]
        assert groups == [["topogate.dev"], ["kueue.x-k8s.io"]]


def test_it_is_the_ungaters_right_to_read_and_to_write_states_alone():
    more = named(BESIDE).keys() - named(InstallOptions(domain="topogate.dev", namespace="tg")).keys()
    assert more == {("ClusterRole", "topogate-ungater-kueue"), ("ClusterRoleBinding", "topogate-ungater-kueue")}
    role = named(BESIDE)["ClusterRole", "topogate-ungater-kueue"]
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"kueue.x-k8s.io"}, "no other domain"
    writes = {
        resource
        for rule in role["rules"]
        if not {*rule["verbs"]} <= {"get", "list", "watch"}
        for resource in rule["resources"]
    }
    assert writes == {"admissionchecks/status", "workloads/status"}
    binding = named(BESIDE)["ClusterRoleBinding", "topogate-ungater-kueue"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "topogate-ungater", "namespace": "tg"}]


SIDE_BY_SIDE = InstallOptions(beside=True, kueue=True)
SERVED = {"key": "topogate.dev/served", "operator": "In", "values": ["true"]}


def test_beside_kueue_webhooks_and_policies_for_tenants_meet_served_namespaces_alone():
    found, plain = named(SIDE_BY_SIDE), named(InstallOptions(kueue=True))
    hooks = found["MutatingWebhookConfiguration", "topogate-webhook"]["webhooks"]
    by_name = {one["name"]: one["namespaceSelector"]["matchExpressions"] for one in hooks}
    assert {name for name, wanted in by_name.items() if SERVED in wanted} == {
        "job.topogate.dev",
        "jobset.topogate.dev",
        "pod.topogate.dev",
        "owner.topogate.dev",
    }
    bindings = {name: obj["spec"] for (kind, name), obj in found.items() if kind.endswith("PolicyBinding")}
    narrowed = {name for name, spec in bindings.items() if "matchResources" in spec}
    assert narrowed == {"topogate-pods", "topogate-hints", "topogate-unread"}, (
        "what the ungater may do is the same everywhere"
    )
    assert found.keys() - plain.keys() == {
        ("ValidatingAdmissionPolicy", "topogate-served"),
        ("ValidatingAdmissionPolicyBinding", "topogate-served"),
        ("ValidatingAdmissionPolicy", "topogate-started"),
        ("ValidatingAdmissionPolicyBinding", "topogate-started"),
    }


def test_without_it_all_is_as_it_was():
    expected = [one for one in named(SIDE_BY_SIDE) if one[1] not in {"topogate-served", "topogate-started"}]
    assert list(named(InstallOptions(kueue=True))) == expected
    text = yaml.safe_dump(render.objects(InstallOptions(kueue=True)))
    assert "matchResources" not in text
    assert text.count("topogate.dev/served") == 2, "the right of the ungater to mark pods, and its words"


def test_the_label_is_for_those_who_may_patch_all_namespaces():
    policy = named(SIDE_BY_SIDE)["ValidatingAdmissionPolicy", "topogate-served"]["spec"]
    assert policy["matchConstraints"]["resourceRules"][0]["resources"] == ["namespaces"]
    assert (
        policy["validations"][0]["expression"] == "authorizer.group('').resource('namespaces').check('patch').allowed()"
    )


def test_nobody_but_controllers_says_in_a_served_namespace_that_kueue_started_a_job():
    policy = named(SIDE_BY_SIDE)["ValidatingAdmissionPolicy", "topogate-started"]["spec"]
    assert policy["matchConstraints"]["namespaceSelector"] == {"matchLabels": {SERVED["key"]: "true"}}
    assert [one["operations"] for one in policy["matchConstraints"]["resourceRules"]] == [["UPDATE"], ["UPDATE"]]
    assert policy["validations"][0]["expression"].startswith("variables.after <= variables.before || authorizer.group(")
