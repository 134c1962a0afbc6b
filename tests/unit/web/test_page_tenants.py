"""Two tenants: no answer of the page has a name of what is in a namespace that the viewer may not see."""

import json
import re

import pytest
import yaml
from support.snapshots import DOMAIN, FLAVOR, GPU, RACK, container, foreign, node, running, steady
from support.web_cluster import items

from cli.cluster import dump as dumps
from cli.cluster.dump import FoundObject
from cli.web.questions import UNTOLD, ClusterQuestions
from cli.web.snapshot import ClusterSnapshot
from clock import SYSTEM
from crds.settings import Settings
from web import inside, picture
from web.sight import EVERYTHING, Sight

TENANT = Sight(hosts=True, namespaces=frozenset({"team"}))
REQUIRED = {f"{DOMAIN}/podset-required-topology": RACK}
NODES = [node(name, name[:2]) for name in ("r1h1", "r1h2")]


def of_another(objects, namespace="secret"):
    for one in objects:
        one["metadata"]["namespace"] = namespace
    return objects


def job(pods, gpus, *, labels=None, namespace="team", **spec):
    meta = {"name": "ask", "namespace": namespace, "annotations": REQUIRED, "labels": labels or {}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container(gpus)], **spec}}
    counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {**counts, "template": template}}


def asked(tmp_path, manifest, *cluster, sight):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, *NODES, *cluster]))
    dump = dumps.read([str(path)])
    questions = ClusterQuestions(lambda: (dump, ()), Settings(), SYSTEM)
    (answer,) = questions.place_manifest(yaml.safe_dump(manifest), "team", sight)["answers"]
    return answer


def told_both(tmp_path, manifest, *cluster):
    """What is told to whoever sees everything, and to the tenant, who may not hear of the others."""
    whole, own = (asked(tmp_path, manifest, *cluster, sight=sight) for sight in (EVERYTHING, TENANT))
    assert "secret" in json.dumps(whole), "else nothing is tried here"
    assert "secret" not in json.dumps(own)
    assert "rival" not in json.dumps(own)
    assert (own["state"], own["reason"]) == (whole["state"], whole["reason"])
    return whole, own


QUEUES = [
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("team", "secret")),
    *(
        {
            "apiVersion": "topogate.dev/v1alpha1",
            "kind": "LocalQueue",
            "metadata": {"name": "lq", "namespace": name},
            "spec": {"clusterQueue": "cq"},
        }
        for name in ("team", "secret")
    ),
]


def cluster_queue(gpus, **spec):
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in ((GPU, gpus), ("cpu", 100))]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": "tas", "resources": quotas}]}]
    body = {"apiVersion": "topogate.dev/v1alpha1", "kind": "ClusterQueue", "metadata": {"name": "cq"}}
    return {**body, "spec": {"resourceGroups": groups, "namespaceSelector": {}, **spec}}


def queued(name, where, gpus):
    """A job that runs in the queue of the other namespace."""
    objects = running(name, where, gpus, priority=1)
    owner, workload = objects[:2]
    owner["metadata"]["labels"] = {f"{DOMAIN}/queue-name": "lq"}
    workload["metadata"]["uid"] = f"w-{name}"
    workload["spec"] |= {"queueName": "lq", "priority": 1}
    admission = workload["status"]["admission"]
    admission["clusterQueue"] = "cq"
    admission["podSetAssignments"][0] |= {
        "flavors": {GPU: "tas", "cpu": "tas"},
        "resourceUsage": {GPU: gpus * len(where), "cpu": str(len(where))},
    }
    workload["status"]["conditions"] = [
        {"type": one, "status": "True", "reason": "Admitted", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for one in ("QuotaReserved", "Admitted")
    ]
    return of_another(objects)


HIGH = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
IN_QUEUE = {f"{DOMAIN}/queue-name": "lq"}


def test_who_holds_the_room_of_a_manifest_is_told_to_those_alone_who_may_see_them(tmp_path):
    rival = of_another(steady("rival", ["r1h1", "r1h2"], 8))
    _, own = told_both(tmp_path, job(2, 8), *rival, foreign("x", "r1h1", 0))
    assert (own["state"], own["message"]) == ("Waits", UNTOLD)
    assert [one["name"] for one in own["relief"]["enough"]] == ["somebody else's"]


def test_whom_a_manifest_would_evict_is_told_to_those_alone_who_may_see_them(tmp_path):
    queue = cluster_queue(32, preemption={"withinClusterQueue": "LowerPriority"})
    ask = job(2, 8, labels=IN_QUEUE, priorityClassName="high")
    whole, own = told_both(tmp_path, ask, *QUEUES, HIGH, queue, *queued("rival", ["r1h1", "r1h2"], 8))
    assert own["state"] == "Preempts"
    assert "Job secret/rival" in whole["message"]
    assert [one["title"] for one in own["victims"]] == [""]


def test_who_holds_the_quota_of_a_manifest_is_told_to_those_alone_who_may_see_them(tmp_path):
    ask = job(1, 8, labels=IN_QUEUE)
    whole, own = told_both(tmp_path, ask, *QUEUES, cluster_queue(8), *queued("rival", ["r1h1"], 8))
    assert own["reason"] == "InsufficientQuota"
    assert "Job secret/rival" in whole["message"]


def test_which_claims_have_the_devices_of_a_manifest_is_told_to_those_alone_who_may_see_them(tmp_path):
    api, driver = "resource.k8s.io/v1", "gpu.example.com"
    asks = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": driver, "count": 2}}]}}
    pool = {"name": "r1h1", "generation": 1, "resourceSliceCount": 1}
    published = {"driver": driver, "nodeName": "r1h1", "pool": pool, "devices": [{"name": "a"}, {"name": "b"}]}
    held = {"request": "gpu", "driver": driver, "pool": "r1h1", "device": "a"}
    cluster = [
        {"apiVersion": api, "kind": "DeviceClass", "metadata": {"name": driver}, "spec": {}},
        {"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": published},
        {
            "apiVersion": api,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "two", "namespace": "team"},
            "spec": {"spec": asks},
        },
        {
            "apiVersion": api,
            "kind": "ResourceClaim",
            "metadata": {"name": "rival", "namespace": "secret"},
            "spec": asks,
            "status": {"allocation": {"devices": {"results": [held]}}},
        },
    ]
    ask = job(1, 1, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "two"}])
    whole, own = told_both(tmp_path, ask, *cluster)
    assert any("held by secret/rival" in room["devices"] for room in whole["room"])
    assert [room["fits"] for room in own["room"]] == [room["fits"] for room in whole["room"]]


def test_what_is_wrong_with_a_manifest_is_told_to_whoever_sees_its_namespace(tmp_path):
    wrong = job(1, 1)
    wrong["metadata"]["annotations"] = {f"{DOMAIN}/podset-required-topology": "nope"}
    whole, own = (asked(tmp_path, wrong, sight=sight) for sight in (EVERYTHING, TENANT))
    assert json.dumps(whole) == json.dumps(own)
    assert "nope" in own["message"]
    placed = asked(tmp_path, job(1, 1), sight=TENANT)
    assert (placed["state"], placed["message"]) == ("Placed", "1 pod in r1 (example.com/rack), on 1 host")


def test_who_asks_as_if_in_another_namespace_hears_nothing_of_what_is_there(tmp_path):
    group = {"replicas": 1, "leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": {"containers": []}}}}
    api = "leaderworkerset.x-k8s.io/v1"
    meta = {"name": "rival", "namespace": "secret", "uid": "u"}
    there = {"apiVersion": api, "kind": "LeaderWorkerSet", "metadata": meta, "spec": group}
    ask = {"apiVersion": api, "kind": "LeaderWorkerSet", "metadata": {"name": "rival", "namespace": "secret"}}
    whole, own = (asked(tmp_path, {**ask, "spec": group}, there, sight=sight) for sight in (EVERYTHING, TENANT))
    assert "there already" in whole["message"]
    assert (own["message"], own["warnings"]) == (UNTOLD, [])


@pytest.fixture(scope="module")
def busy():
    bodies = items(2, 4, 4, machines=4)
    return ClusterSnapshot(
        (FoundObject("made", b"", 0, None, body, body["kind"]) for body in bodies), Settings(), "made"
    )


def test_no_answer_about_a_busy_cluster_names_what_others_have(busy):
    board, sight = busy.board, Sight(hosts=True, queues=True, namespaces=frozenset({"speech"}))
    theirs = {key.rpartition("/")[2] for key in board.all_holders() if not key.startswith("speech/")}
    theirs |= {board.holders[key].name for key in board.holders if not key.startswith("speech/")}
    theirs |= {pod.partition("/")[2] for pod in board.pods if not pod.startswith("speech/")}
    questions = ClusterQuestions(busy.reading, Settings(), busy.clock(SYSTEM))
    large = "kueue.x-k8s.io/require-topology: cloud-provider.com/topology-rack"
    manifest = yaml.safe_dump(job(64, 8)).replace(f"{DOMAIN}/podset-required-topology: {RACK}", large)

    def answers(sight):
        keys = [key for key in board.holders if sight.may_name(key.partition("/")[0])]
        yield picture.whole_picture(board, sight, version=1, epoch="e", now=0.0, cluster="c").decode()
        yield from (
            json.dumps(inside.machine(board, sight, name, *busy.inside_of_host(name)), default=str)
            for name in board.hosts
        )
        yield json.dumps(questions.queues(sight))
        yield from (json.dumps(questions.explain(key, sight)) for key in keys)
        yield json.dumps(questions.place_manifest(manifest, "speech", sight))

    def named(sight):
        words = {word for text in answers(sight) for word in re.findall(r"[-a-z0-9.]+", text)}
        return words & theirs

    assert named(sight) == set()
    assert len(named(EVERYTHING)) > len(theirs) / 2, "else nothing is tried here"
