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
