"""`topogate place --dry-run` of pods that ask for devices which are not counted, on snapshots."""

import json

import pytest
import yaml
from support.snapshots import DOMAIN, FLAVOR, RACK, container, foreign, node, running
from typer.testing import CliRunner

from cli.main import app

GPU = "nvidia.com/gpu"
REQUIRED = {f"{DOMAIN}/podset-required-topology": RACK}
NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]
CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.example.com", "creationTimestamp": "2026-11-21T00:00:00Z"},
    "spec": {"extendedResourceName": "example.com/gpu"},
}
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one-gpu", "namespace": "team"},
    "spec": {"spec": {"devices": {"requests": [REQUEST]}}},
}


def devices(name, count):
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool}
    spec |= {"devices": [{"name": f"gpu-{number}"} for number in range(count)]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def written(tmp_path, *more):
    items = [FLAVOR, *NODES, *more]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def ask(tmp_path, *manifests, cluster=(), status=3):
    command = ["place", "-f", "-", "--dry-run", "--cluster", written(tmp_path, *cluster), "-o", "json"]
    result = CliRunner().invoke(app, command, input=yaml.safe_dump_all(manifests))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def made(kind, api, spec, **meta):
    meta = {"name": "train", "namespace": "team", "uid": "u-train", **meta}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}


def template(**more):
    return {"metadata": {"annotations": REQUIRED}, "spec": {"containers": [container(1)], **CLAIMS, **more}}


def a_job(spec, **meta):
    pods = {"parallelism": 2, "completions": 2, "template": {"spec": {"restartPolicy": "Never", **spec}}}
    return made("Job", "batch/v1", pods, annotations=REQUIRED, **meta)


OWNERS = {
    "Job": a_job({"containers": [container(1)], **CLAIMS}),
    "Pod": made("Pod", "v1", template()["spec"], annotations=REQUIRED),
    "Deployment": made("Deployment", "apps/v1", {"replicas": 2, "template": template()}),
    "StatefulSet": made("StatefulSet", "apps/v1", {"replicas": 2, "template": template()}),
    "JobSet": made(
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        {"replicatedJobs": [{"name": "main", "template": {"spec": {"template": template(restartPolicy="Never")}}}]},
        annotations=REQUIRED,
    ),
    "LeaderWorkerSet": made(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io/v1",
        {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
    ),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_pods_with_claims_of_any_owner_are_placed_nowhere(tmp_path, kind):
    (answer,) = ask(tmp_path, OWNERS[kind])
    assert (answer["state"], answer["reason"]) == ("Waits", "ResourceClaimsNotCounted")
    assert answer["message"] == (
        'the pods of pod set main have resource claim "gpu" (of template "one-gpu"): '
        'ResourceClaimTemplate "one-gpu" does not exist'
    )


def test_a_template_of_the_manifests_counts_on_devices_of_the_snapshot(tmp_path):
    cluster = [CLASS, devices("r1h1", 2), devices("r2h1", 2), devices("r2h2", 3)]
    (answer,) = ask(tmp_path, TEMPLATE, OWNERS["Job"], cluster=cluster, status=0)
    assert answer["state"] == "Placed"
    nodes = [node for part in answer["podSets"] for domain in part["domains"] for node in domain["nodes"]]
    assert [(one["node"], one["pods"]) for one in nodes] == [("r2h1", 1), ("r2h2", 1)]
    pair = [["gpu.example.com/gpu-0", "gpu.example.com/gpu-1"]]
    assert [one["devices"] for one in nodes] == [pair, pair]


def test_jobs_that_come_together_are_told_different_devices(tmp_path):
    cluster = [CLASS, TEMPLATE, devices("r2h1", 8)]
    other = a_job({"containers": [container(1)], **CLAIMS}, name="other", uid="u-other")
    command = ["place", "-f", "-", "--dry-run", "--cluster", written(tmp_path, *cluster)]
    written_down = yaml.safe_dump_all([OWNERS["Job"], other])
    result = CliRunner().invoke(app, [*command, "-o", "json"], input=written_down)
    answers = json.loads(result.stdout)
    nodes = [node for one in answers for part in one["podSets"] for at in part["domains"] for node in at["nodes"]]
    found = [name.removeprefix("gpu.example.com/gpu-") for node in nodes for names in node["devices"] for name in names]
    assert (len(nodes), found) == (2, list("01234567"))
    assert "gpu.example.com/gpu-6, gpu.example.com/gpu-7" in CliRunner().invoke(app, command, input=written_down).stdout


def test_what_holds_devices_and_which_request_lacks_them_is_told(tmp_path):
    held = {"driver": "gpu.example.com", "pool": "r2h1", "device": "gpu-0"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "team"},
        "spec": TEMPLATE["spec"]["spec"],
        "status": {"allocation": {"devices": {"results": [{"request": "gpu", **held}]}}},
    }
    cluster = [CLASS, TEMPLATE, devices("r1h1", 2), devices("r2h1", 2), devices("r2h2", 3), claim]
    (answer,) = ask(tmp_path, OWNERS["Job"], cluster=cluster)
    assert (answer["state"], answer["reason"]) == ("Waits", "DoesNotFit")
    told = 'r2h1: claim "gpu", request "gpu" (2 of DeviceClass "gpu.example.com"): 2 fit, 1 held by team/held'
    assert any(told in room["devices"] for room in answer["room"])


def test_a_class_of_the_snapshot_counts(tmp_path):
    asks = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1"}}}]}
    cluster = [CLASS, devices("r1h1", 1), devices("r2h1", 1), devices("r2h2", 1)]
    (answer,) = ask(tmp_path, a_job(asks), cluster=cluster, status=0)
    nodes = [node["node"] for part in answer["podSets"] for domain in part["domains"] for node in domain["nodes"]]
    assert (answer["state"], nodes) == ("Placed", ["r2h1", "r2h2"])
    (answer,) = ask(tmp_path, a_job(asks), cluster=[CLASS, devices("r1h1", 1)])
    assert answer["reason"] == "NeverFits"
    request = (
        'claim "<extended-resources>", request "container-0-request-0" (1 of DeviceClass "gpu.example.com"): 1 fits'
    )
    assert any(room["devices"] == f"r1h1: {request}" for room in answer["room"])
    (answer,) = ask(tmp_path, a_job(asks))
    assert answer["reason"] == "NeverFits"


def test_what_nodes_publish_is_placed_whatever_class_there_is(tmp_path):
    of_nodes = {**CLASS, "spec": {"extendedResourceName": GPU}}
    (answer,) = ask(tmp_path, a_job({"containers": [container(1)]}), cluster=[of_nodes], status=0)
    assert answer["state"] == "Placed"


MINE = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine", "namespace": "team"}}
OF_MINE = {"containers": [container(1)], "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}


def test_a_claim_that_pods_name_counts_among_the_manifests_and_in_the_snapshot(tmp_path):
    """Two pods share it, so both go onto one node; where it has devices already, to where these are."""
    cluster = [CLASS, devices("r1h1", 1), devices("r2h2", 2)]
    mine = {**MINE, "spec": TEMPLATE["spec"]["spec"]}
    (answer,) = ask(tmp_path, a_job(OF_MINE), cluster=cluster)
    assert answer["message"].endswith('(ResourceClaim "mine"): ResourceClaim "mine" does not exist')
    (answer,) = ask(tmp_path, mine, a_job(OF_MINE), cluster=cluster, status=0)
    nodes = [node for part in answer["podSets"] for domain in part["domains"] for node in domain["nodes"]]
    assert [(one["node"], one["pods"]) for one in nodes] == [("r2h2", 2)]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["r1h1"]}]}]
    given = {"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": terms}}
    there = {**mine, "status": {"allocation": given}}
    (answer,) = ask(tmp_path, mine, a_job(OF_MINE), cluster=[*cluster, there], status=0)
    nodes = [node for part in answer["podSets"] for domain in part["domains"] for node in domain["nodes"]]
    assert [(one["node"], one["pods"]) for one in nodes] == [("r1h1", 2)]


def test_who_would_have_to_go_for_devices_is_named_by_the_claims(tmp_path):
    low, other = running("low", ["r2h1"], 1), running("other", ["r2h2"], 1)
    pod = low[2]["metadata"]["name"]
    held = [{"request": "gpu", "driver": "gpu.example.com", "pool": "r2h1", "device": f"gpu-{n}"} for n in (0, 1)]
    users = [{"resource": "pods", "name": pod, "uid": low[2]["metadata"].get("uid", "u")}]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "team"},
        "spec": TEMPLATE["spec"]["spec"],
        "status": {"allocation": {"devices": {"results": held}}, "reservedFor": users},
    }
    cluster = [CLASS, TEMPLATE, devices("r2h1", 2), devices("r2h2", 2), *low, *other]
    (answer,) = ask(tmp_path, OWNERS["Job"], cluster=[*cluster, claim])
    assert answer["reason"] == "DoesNotFit"
    assert [one["name"] for one in answer["relief"]["enough"]] == ["job/low"]
    users.append({"resource": "pods", "name": "somebody", "uid": "u"})
    somebody = foreign("somebody", "r2h1", 0)
    somebody["metadata"]["namespace"] = "team"
    (answer,) = ask(tmp_path, OWNERS["Job"], cluster=[*cluster, claim, somebody])
    assert answer["relief"]["enough"] == []
