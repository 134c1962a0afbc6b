"""`topogate place --dry-run` on snapshots: where pods would go, why not, what would have to be freed, and bad input."""

import json
from functools import partial
from pathlib import Path

import pytest
import yaml
from support.snapshots import DOMAIN, FLAVOR, GPU, HOST, RACK, container, foreign, node
from support.snapshots import let_go as running
from typer.testing import CliRunner

from cli.cluster import cluster_snapshot
from cli.cluster import dump as dumps
from cli.main import app
from cli.output import Failure
from crds.settings import Settings

DATA = Path(__file__).parents[2] / "data"
NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]
REQUIRED = {f"{DOMAIN}/podset-required-topology": RACK}


def job(name, pods, gpus, request=REQUIRED, **spec):
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "annotations": request, "labels": spec.pop("labels", {})},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"spec": {"restartPolicy": "Never", "containers": [container(gpus)], **spec}},
        },
    }


def of_pods(kind, name, replicas, gpus, *, request=REQUIRED):
    template = {"metadata": {"annotations": request}, "spec": {"containers": [container(gpus)]}}
    spec = {"replicas": replicas, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def listed(items):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def run(tmp_path, manifests, cluster=(), args=(), text=None):
    (tmp_path / "cluster.json").write_text(listed([FLAVOR, *NODES, *cluster]))
    given = text if text is not None else yaml.safe_dump_all(manifests)
    command = ["place", "-f", "-", "--dry-run", "--cluster", str(tmp_path / "cluster.json"), *args]
    result = CliRunner().invoke(app, command, input=given)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ask(tmp_path, *manifests, cluster=(), status=0, args=()):
    result = run(tmp_path, manifests, cluster, ("-o", "json", *args))
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def nodes_of(answer):
    return {
        on["node"]: on["pods"] for part in answer["podSets"] for domain in part["domains"] for on in domain["nodes"]
    }


def test_a_job_that_fits(tmp_path):
    (answer,) = ask(tmp_path, job("train", 4, 4), cluster=running("a", ["r1h1"], 4))
    assert (answer["name"], answer["state"]) == ("job/train", "Placed")
    (part,) = answer["podSets"]
    assert (part["policy"], part["level"], part["flavor"]) == ("Required", RACK, "tas")
    assert [(d["values"], d["pods"], d["first"]) for d in part["domains"]] == [
        (["r2", "r2h1"], 2, 0),
        (["r2", "r2h2"], 2, 2),
    ]
    assert "4 pods in r2" in answer["message"]


def test_objects_of_one_call_see_each_other(tmp_path):
    first, second = ask(tmp_path, job("one", 2, 8), job("two", 2, 8))
    assert nodes_of(first).keys() & nodes_of(second).keys() == set()
    answers = ask(tmp_path, job("one", 2, 8), job("two", 2, 8), job("three", 2, 8), status=3)
    assert sorted(answer["state"] for answer in answers) == ["Placed", "Placed", "Waits"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
def test_pods_of_controllers_are_one_workload(tmp_path, kind):
    (answer,) = ask(tmp_path, of_pods(kind, "web", 3, 4))
    assert (answer["name"], answer["state"]) == (f"{kind.lower()}/web", "Placed")
    assert sum(nodes_of(answer).values()) == 3
    assert len({name[:2] for name in nodes_of(answer)}) == 1


def test_a_group_of_bare_pods_goes_together(tmp_path):
    def member(at):
        annotations = {**REQUIRED, f"{DOMAIN}/pod-group-total-count": "2"}
        meta = {"name": f"p{at}", "namespace": "team", "labels": {f"{DOMAIN}/pod-group-name": "pair"}}
        meta["annotations"] = annotations
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container(8)]}}

    (answer,) = ask(tmp_path, member(0), member(1))
    assert (answer["name"], answer["state"]) == ("podgroup/pair", "Placed")
    assert sum(nodes_of(answer).values()) == 2


def test_a_job_set_is_one_workload_with_a_pod_set_for_each_replicated_job(tmp_path):
    template = {"metadata": {"annotations": REQUIRED}, "spec": job("x", 2, 4)["spec"]}
    groups = [
        {"name": "w", "replicas": 2, "template": template},
        {"name": "l", "template": {"spec": job("x", 1, 1)["spec"]}},
    ]
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "js", "namespace": "team"}}
    (answer,) = ask(tmp_path, {**body, "spec": {"replicatedJobs": groups}})
    assert (answer["name"], answer["state"]) == ("jobset/js", "Placed")
    assert [(part["name"], part["count"]) for part in answer["podSets"]] == [("w", 4), ("l", 1)]
    workers = {on["node"] for domain in answer["podSets"][0]["domains"] for on in domain["nodes"]}
    assert len({name[:2] for name in workers}) == 1


def leader_worker_set(groups=2, size=3, *, leader=None, worker=REQUIRED, **meta):
    def template(gpus, annotations):
        return {"metadata": {"annotations": annotations}, "spec": {"containers": [container(gpus)]}}

    shape = {"size": size, "workerTemplate": template(4, worker)}
    if leader is not None:
        shape["leaderTemplate"] = template(1, leader)
    about = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    body = {**about, "metadata": {"name": "lws", "namespace": "team", **meta}}
    return {**body, "spec": {"replicas": groups, "leaderWorkerTemplate": shape}}


def test_each_group_of_a_leader_worker_set_is_a_workload(tmp_path):
    together = {**REQUIRED, f"{DOMAIN}/podset-group-name": "all"}
    answers = ask(tmp_path, leader_worker_set(leader=together, worker=together))
    assert [(answer["name"], answer["state"]) for answer in answers] == [
        ("leaderworkerset/lws-0", "Placed"),
        ("leaderworkerset/lws-1", "Placed"),
    ]
    racks = [{name[:2] for name in nodes_of(answer)} for answer in answers]
    assert sorted(map(len, racks)) == [1, 1]
    assert racks[0] != racks[1], "9 GPUs each: there are 16 in a rack"
    assert [(part["name"], part["count"]) for part in answers[0]["podSets"]] == [("leader", 1), ("workers", 2)]
    (third, *_) = [one for one in ask(tmp_path, leader_worker_set(3, 3), status=3) if one["state"] == "Waits"]
    assert third["reason"] == "DoesNotFit"


def test_a_leader_worker_set_without_a_leader_template_has_pods_of_one_kind(tmp_path):
    (answer,) = ask(tmp_path, leader_worker_set(1, 4))
    (part,) = answer["podSets"]
    assert (part["name"], part["count"], part["ranked"]) == ("main", 4, True)
    assert answer["warnings"] == []


def test_pods_of_a_leader_worker_set_that_would_not_be_gated_are_told(tmp_path):
    first, *_ = ask(tmp_path, leader_worker_set(leader={}))
    (warning,) = first["warnings"]
    assert "leaderTemplate: carries neither a topology request nor the label" in warning
    (answer,) = ask(tmp_path, leader_worker_set(worker={}))
    assert (answer["state"], answer["warnings"]) == ("NotManaged", [])
    (answer,) = ask(tmp_path, leader_worker_set(0))
    assert (answer["state"], answer["message"]) == ("NotManaged", "it has no pods")


def test_what_stands_on_an_owner_counts_for_its_pods(tmp_path):
    answers = ask(tmp_path, leader_worker_set(leader={}, worker={}, annotations=REQUIRED))
    assert [(answer["state"], answer["warnings"]) for answer in answers] == [("Placed", [])] * 2
    deployment = of_pods("Deployment", "web", 2, 1, request={})
    deployment["metadata"]["annotations"] = REQUIRED
    (answer,) = ask(tmp_path, deployment)
    assert answer["state"] == "Placed"
    assert sum(nodes_of(answer).values()) == 2
    deployment["metadata"]["annotations"] = {f"{DOMAIN}/require-topology": "no.such/level"}
    (answer,) = ask(tmp_path, deployment, status=4)
    assert "no.such/level" in answer["message"]


def test_a_leader_worker_set_is_refused_for_its_templates_and_where_it_is_there(tmp_path):
    wrong = {f"{DOMAIN}/podset-required-topology": "no-such-level"}
    (answer,) = ask(tmp_path, leader_worker_set(leader=wrong), status=4)
    assert "spec.leaderWorkerTemplate.leaderTemplate: " in answer["message"]
    assert "no-such-level" in answer["message"]
    there = leader_worker_set()
    there["metadata"]["uid"] = "l1"
    (answer,) = ask(tmp_path, leader_worker_set(), cluster=[there], status=4)
    assert "it is there already" in answer["message"]


def test_what_asks_for_nothing_is_left_alone(tmp_path):
    (answer,) = ask(tmp_path, of_pods("Deployment", "plain", 2, 1, request={}))
    assert (answer["name"], answer["state"]) == ("deployment/plain", "NotManaged")


def test_why_not_and_what_would_have_to_go(tmp_path):
    cluster = []
    for name, where, priority in (("big", ["r1h1", "r1h2"], 7), ("small", ["r2h1"], 30)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        owner, *others = running(name, where, 8, priority=priority)
        owner["spec"]["template"]["spec"]["priorityClassName"] = name
        cluster += [{**kind, "value": priority}, owner, *others]
    (answer,) = ask(tmp_path, job("train", 2, 8), cluster=cluster, status=3)
    assert (answer["state"], answer["reason"]) == ("Waits", "DoesNotFit")
    assert [(room["values"], room["fits"]) for room in answer["room"]] == [(["r2"], 1), (["r1"], 0)]
    found = answer["relief"]
    assert (found["domain"], found["fits"], found["missing"]) == (["r2"], 1, {GPU: "8"})
    (holder,) = found["heldBy"]
    assert (holder["name"], holder["pods"], holder["priority"], holder["amounts"][GPU]) == ("job/small", 1, 30, "8")
    (victim,) = found["enough"]  # more pods, but of a lower priority
    assert (victim["name"], victim["priority"], victim["pods"]) == ("job/big", 7, 2)
    assert found["enoughIn"] == ["r1"]
    assert "a job without a queue evicts nobody" in found["preemption"]


def test_pods_that_are_not_ours_are_in_the_way_too(tmp_path):
    cluster = [foreign("squatter", name, 8) for name in ("r1h1", "r2h1")]
    cluster[0]["metadata"]["uid"], cluster[1]["metadata"] = (
        "u1",
        {**cluster[1]["metadata"], "name": "other", "uid": "u2"},
    )
    (answer,) = ask(tmp_path, job("train", 2, 8), cluster=cluster, status=3)
    (one,) = answer["relief"]["enough"]
    assert one["workload"] == ""
    assert one["name"] in {"pod/squatter", "pod/other"}


def test_daemons_are_nobody_that_could_go(tmp_path):
    cluster = [foreign(f"ds-{name}", name, 1, "DaemonSet") for name in ("r1h1", "r2h1")]
    (answer,) = ask(tmp_path, job("train", 2, 8), cluster=cluster, status=3)
    assert answer["relief"] is None or answer["relief"]["enough"] == []


def test_what_never_fits_has_nothing_to_be_freed(tmp_path):
    (answer,) = ask(tmp_path, job("train", 3, 8), status=3)
    assert (answer["reason"], answer["relief"]) == ("NeverFits", None)


def test_a_request_that_the_webhook_refuses(tmp_path):
    wrong = job("train", 1, 1, {f"{DOMAIN}/podset-required-topology": "no-such-level"})
    answers = ask(tmp_path, wrong, job("fine", 1, 1), status=4)
    assert [(answer["name"], answer["state"]) for answer in answers] == [
        ("job/train", "Refused"),
        ("job/fine", "Placed"),
    ]
    assert "no-such-level" in answers[0]["message"]


def test_where_a_queue_is_required_all_that_name_none_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_snapshot, "Settings", partial(Settings, require_queue=True))
    group = of_pods("StatefulSet", "ring", 2, 1)
    total = {**REQUIRED, f"{DOMAIN}/pod-group-total-count": "2"}
    for asks in (job("train", 1, 1), group, leader_worker_set()):
        (answer,) = ask(tmp_path, asks, status=4)
        assert answer["state"] == "Refused"
        assert f"metadata.labels[{DOMAIN}/queue-name]: Required value" in answer["message"]
    group = of_pods("StatefulSet", "ring", 2, 1, request=total)
    group["spec"]["template"]["metadata"]["labels"] = {f"{DOMAIN}/queue-name": "q"}
    (answer,) = ask(tmp_path, group, status=3)
    assert answer["state"] == "Waits"
    assert not any("has no effect" in text for text in answer["warnings"]), "its pods have a controller"


def test_a_suspended_job_waits(tmp_path):
    body = job("train", 1, 1)
    body["spec"]["suspend"] = True
    (answer,) = ask(tmp_path, body, status=3)
    assert answer["reason"] == "Suspended"


QUEUES = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
    {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "LocalQueue",
        "metadata": {"name": "lq", "namespace": "team"},
        "spec": {"clusterQueue": "cq"},
    },
]


def cluster_queue(gpus, **spec):
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in ((GPU, gpus), ("cpu", 100))]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": "tas", "resources": quotas}]}]
    body = {"apiVersion": "topogate.dev/v1alpha1", "kind": "ClusterQueue", "metadata": {"name": "cq"}}
    return {**body, "spec": {"resourceGroups": groups, "namespaceSelector": {}, **spec}}


def test_quota_counts_too(tmp_path):
    queued = job("train", 2, 8, labels={f"{DOMAIN}/queue-name": "lq"})
    (answer,) = ask(tmp_path, queued, cluster=[*QUEUES, cluster_queue(16)])
    assert (answer["state"], answer["queue"]) == ("Placed", "lq")
    (answer,) = ask(tmp_path, queued, cluster=[*QUEUES, cluster_queue(8)], status=3)
    assert answer["reason"] == "ExceedsQuota"
    (answer,) = ask(tmp_path, queued, status=3)
    assert answer["reason"] == "NoQueue"


def test_what_names_no_queue_gets_the_one_called_default(tmp_path):
    default = {**QUEUES[1], "metadata": {"name": "default", "namespace": "team"}}
    cluster = [*QUEUES, default, cluster_queue(8)]
    told = 'names no queue: it gets LocalQueue "default" of namespace team'
    for body in (job("train", 2, 4), of_pods("Deployment", "web", 2, 4, request={})):
        (answer,) = ask(tmp_path, body, cluster=cluster)
        assert (answer["state"], answer["queue"]) == ("Placed", "default")
        assert [told in text for text in answer["warnings"]] == [True]
    named = job("train", 2, 4, labels={f"{DOMAIN}/queue-name": "lq"})
    (answer,) = ask(tmp_path, named, cluster=cluster)
    assert (answer["queue"], answer["warnings"]) == ("lq", [])
    owned = job("train", 2, 4)
    owned["metadata"]["ownerReferences"] = [{"kind": "JobSet", "controller": True}]
    (answer,) = ask(tmp_path, owned, cluster=cluster)
    assert not answer.get("queue")


def test_victims_are_named(tmp_path):
    owner_job, workload, *pods = running("low", ["r1h1", "r1h2"], 8, priority=1)
    owner_job["metadata"]["labels"] = {f"{DOMAIN}/queue-name": "lq"}
    workload["metadata"]["uid"] = "w-low"
    workload["spec"] |= {"queueName": "lq", "priority": 1}
    workload["status"]["admission"]["clusterQueue"] = "cq"
    workload["status"]["admission"]["podSetAssignments"][0]["flavors"] = {GPU: "tas", "cpu": "tas"}
    workload["status"]["admission"]["podSetAssignments"][0]["resourceUsage"] = {GPU: 16, "cpu": "2"}
    workload["status"]["conditions"] = [
        {"type": name, "status": "True", "reason": "Admitted", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for name in ("QuotaReserved", "Admitted")
    ]
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
    full = [foreign("x", name, 8) for name in ("r2h1", "r2h2")]
    for number, pod in enumerate(full):
        pod["metadata"]["name"] = f"x{number}"
    cluster = [*QUEUES, high, owner_job, workload, *pods, *full]
    train = job("train", 2, 8, labels={f"{DOMAIN}/queue-name": "lq"}, priorityClassName="high")
    policy = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    (answer,) = ask(tmp_path, train, cluster=[*cluster, cluster_queue(32, **policy)], status=3)
    assert answer["state"] == "Preempts"
    assert [victim["job"] for victim in answer["victims"]] == ["team/job/low"]
    assert set(nodes_of(answer)) == {"r1h1", "r1h2"}
    (answer,) = ask(tmp_path, train, cluster=[*cluster, cluster_queue(32)], status=3)
    assert answer["state"] == "Waits"
    assert "ClusterQueue cq allows none" in answer["relief"]["preemption"]
    others = [one for one in cluster if one is not high]
    meek = {**high, "preemptionPolicy": "Never"}
    (answer,) = ask(tmp_path, train, cluster=[*others, meek, cluster_queue(32, **policy)], status=3)
    assert answer["state"] == "Waits"
    assert "it evicts nobody (preemptionPolicy Never" in answer["relief"]["preemption"]
    owner_job["spec"]["template"]["spec"]["priorityClassName"] = "online"
    about = {"name": "online", "annotations": {"topogate.dev/preemptible": "false"}}
    online = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": about, "value": 1}
    (answer,) = ask(tmp_path, train, cluster=[*cluster, online, cluster_queue(32, **policy)], status=3)
    assert answer["state"] == "Waits"
    assert [one["name"] for one in answer["relief"]["enough"]] == ["pod/x0", "pod/x1"], (
        "it is not among those who could go"
    )


def test_the_table_says_where(tmp_path):
    text = run(tmp_path, [job("train", 4, 4)]).stdout
    assert "Placed  4 pods in r1" in text
    assert "0-1" in text
    assert "\x1b" not in text


LOTS = job("x", 1, 1)
LOTS["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "lots"}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "nothing to place"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: s}", "nothing to place"),
        ("kind: [", "expected YAML or JSON"),
        ("- 1", "expected a Kubernetes object"),
        ("{apiVersion: batch/v1, kind: Job, spec: {template: {}}}", "metadata"),
        ("{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {template: 7}}", "spec.template"),
        (
            "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {replicas: -1, template: {}}}",
            "replicas",
        ),
        ("{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {replicas: 1}}", "spec.template"),
        (
            "{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: x}, spec: {replicatedJobs: 7}}",
            "replicatedJobs",
        ),
        (yaml.safe_dump(leader_worker_set(40_000, 3)), "40000 groups of 3 pods: expected at most 100000 pods"),
        (yaml.safe_dump(leader_worker_set(1, 0)), "leaderWorkerTemplate.size: 0: expected a whole number from 1"),
        (yaml.safe_dump(LOTS), "stdin: line 1, column 1: Job team/x: cpu: 'lots' is not a quantity"),
        ("{apiVersion: batch/v1, kind: job, metadata: {name: x}}", "there is job x; did you mean Job?"),
        ("kind: Job", "there is Job; expected apiVersion batch/..., as a Job has"),
        (
            "{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {parallelism: many, template: {}}}",
            "parallelism",
        ),
    ],
)
def test_bad_input_is_told_without_a_traceback(tmp_path, text, told):
    with pytest.raises(Failure, match=told):
        run(tmp_path, [], text=text)


def test_it_only_plans_whether_it_is_told_so_or_not(tmp_path):
    """Scripts say --dry-run."""
    (tmp_path / "c.json").write_text(listed([FLAVOR, *NODES]))
    command = ["place", "-f", "-", "--cluster", str(tmp_path / "c.json")]
    given = yaml.safe_dump(job("train", 2, 8))
    plain, told = (CliRunner().invoke(app, [*command, *more], input=given) for more in ((), ("--dry-run",)))
    assert (plain.exit_code, plain.output) == (told.exit_code, told.output)
    assert plain.exit_code == 0


def test_hosts_are_named_where_the_narrowest_level_is_no_host(tmp_path):
    flavor = {**FLAVOR, "metadata": {"name": "coarse"}, "spec": {"topology": {"levels": [RACK]}}}
    (tmp_path / "c.json").write_text(listed([flavor, *NODES]))
    command = ["place", "-f", "-", "--dry-run", "--cluster", str(tmp_path / "c.json")]
    text = CliRunner().invoke(app, command, input=yaml.safe_dump(job("train", 2, 8))).stdout
    assert "r1h1 (1), r1h2 (1)" in text
    assert HOST not in text


def test_a_level_by_its_name_is_placed_as_by_its_label(tmp_path):
    by_name = {f"{DOMAIN}/podset-required-topology": "rack"}
    topology = FLAVOR["spec"]["topology"] | {"names": {"rack": RACK}}
    flavor = FLAVOR | {"spec": FLAVOR["spec"] | {"topology": topology}}
    held = running("a", ["r1h1"], 4)
    (before,) = ask(tmp_path, job("train", 4, 4), cluster=held)
    for request in (by_name, REQUIRED):
        (after,) = ask(tmp_path, job("train", 4, 4, request), cluster=[*held, flavor])
        assert after == before
    (deployment,) = ask(tmp_path, of_pods("Deployment", "d", 4, 4, request=by_name), cluster=[*held, flavor])
    assert set(nodes_of(deployment)) == {"r2h1", "r2h2"}
    (refused,) = ask(tmp_path, job("train", 4, 4, by_name), cluster=held, status=4)
    assert 'Unsupported value: "rack"' in refused["message"]


def test_the_ten_closest_domains_unless_all_are_asked_for_and_nothing_said_twice(tmp_path):
    """At host level every node is a domain: 35 of them are 35 lines that nobody reads."""
    many = [node(f"r9h{host}", "r9") for host in range(31)]
    request = {f"{DOMAIN}/podset-required-topology": HOST}
    waits = [job("big", 9, 8, request)]
    text = run(tmp_path, waits, many).stdout
    assert len([line for line in text.splitlines() if line.startswith(("r1/", "r2/", "r9/"))]) == 10
    assert "and 25 more domains, none of them closer; --all shows them" in text
    assert text.count("has 8 nvidia.com/gpu in all") == 1
    text = run(tmp_path, waits, many, ["--all"]).stdout
    assert len([line for line in text.splitlines() if line.startswith(("r1/", "r2/", "r9/"))]) == 35
    (answer,) = ask(tmp_path, *waits, cluster=many, status=3)
    assert len(answer["room"]) == 35


def test_pods_that_use_a_feature_go_where_kubelets_declare_it(tmp_path):
    """Case node-declared-features: kubelets of rack r1 are of 1.35, those of r2 declare RestartAllContainers."""
    job_file, cluster = (DATA / "node-declared-features" / name for name in ("job.json", "objects.json"))
    command = ["place", "-f", str(job_file), "--dry-run", "--cluster", str(cluster)]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, "4 pods in b1/r2" in result.stdout) == (0, True), result.output
    nodes = json.loads(cluster.read_text())
    for one in nodes["items"]:
        one.get("status", {}).pop("declaredFeatures", None)
    (tmp_path / "cluster.json").write_text(json.dumps(nodes))
    result = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "cluster.json")])
    assert "no node declares RestartAllContainersOnContainerExits" in " ".join(result.output.split())


def test_a_namespace_that_is_asked_for_and_not_that_of_the_object_is_told(tmp_path):
    (found,) = ask(tmp_path, job("train", 4, 4), args=("-n", "other"))
    assert found["namespace"] == "team"
    assert found["warnings"] == ["metadata.namespace of Job team/train counts: -n other is for objects that name none"]
    (found,) = ask(tmp_path, job("train", 4, 4), args=("-n", "team"))
    assert not found["warnings"]


def test_a_url_is_no_file():
    with pytest.raises(Failure, match="is a URL, and a file is read here"):
        next(dumps.objects_in("https://example.com/train.yaml"))


def limited_job(name, share="0.4"):
    rule = {"topologyKey": RACK, "maxShareAllowingPlacement": share}
    said = {"workloadLabelSelectors": [{"key": "app", "operator": "In", "values": ["main"]}], "rules": [rule]}
    made = job(name, 1, 1, REQUIRED | {f"{DOMAIN}/podset-topology-spreading": json.dumps(said)})
    made["spec"]["template"]["metadata"] = {"labels": {"app": "main"}}
    return made


def test_jobs_whose_shares_are_limited_take_turns_in_racks_and_the_third_is_told_why(tmp_path):
    first, second, third = ask(tmp_path, limited_job("a"), limited_job("b"), limited_job("c"), status=3)
    assert {name[:2] for name in nodes_of(first)} | {name[:2] for name in nodes_of(second)} == {"r1", "r2"}
    assert third["state"] == "Waits"
    assert "A share of 40% needs at least 3 of them, and there are 2" in third["message"]


def test_groups_of_a_leader_worker_set_count_by_their_owner(tmp_path):
    rule = {"topologyKey": RACK, "maxShareAllowingPlacement": "0.5"}
    alone = REQUIRED | {f"{DOMAIN}/podset-topology-spreading": json.dumps({"rules": [rule]})}
    answers = ask(tmp_path, leader_worker_set(size=2, worker=alone))
    assert {name[:2] for answer in answers for name in nodes_of(answer)} == {"r1", "r2"}
    together = ask(tmp_path, leader_worker_set(size=2))
    assert len({name[:2] for answer in together for name in nodes_of(answer)}) == 1
