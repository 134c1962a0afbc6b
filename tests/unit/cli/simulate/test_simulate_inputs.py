"""What simulations read: traces, manifests, recorded clusters; and what they say about input that is wrong."""

import gzip
import io
import json

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from cli.cluster import cluster_snapshot
from cli.cluster import dump as dumps
from cli.output import Failure
from cli.simulate.cluster import generated, recorded
from cli.simulate.job_files import JobFormat, read_job_files
from cli.simulate.jobs import jobs_in
from cli.simulate.known import known
from cli.simulate.options import Made
from cli.simulate.policies import policies
from cli.simulate.trace import level_named, read, seconds, write
from crds.constants import Keys
from crds.settings import Settings
from engine.model import HOSTNAME_LABEL, NODES_PER_OPENED_DOMAIN, Policy
from engine.numa.score import AlignmentOverPacking
from queueing.model import order
from simulator.entering import queues_of, waiting
from simulator.generate import generate
from simulator.model import Placing, SimulatorOptions
from simulator.model import SchedulingPolicy as Rules

BLOCK, RACK = "cloud-provider.com/topology-block", "cloud-provider.com/topology-rack"
LEVELS = (BLOCK, RACK, HOSTNAME_LABEL)
GPU = "nvidia.com/gpu"
GIB = 2**30
HEAD = "arrival,duration,pods,requests,topology\n"
GOOD = "0,60,1,cpu=1,\n"


def cluster(**fields):
    return generated(Made(**({"machine": "", "kubelet": ""} | msgspec.structs.asdict(small()) | fields)))


def small():
    return Made(blocks=1, racks=2, hosts=2, gpus=8, cpu="96", memory="768Gi", machine="", kubelet="")


def trace(text):
    return read(io.StringIO(text), "t.csv", LEVELS)[0]


def test_jobs_that_arrive_together_keep_the_order_of_their_rows():
    head = "name,arrival,duration,pods,requests\n"
    rows = ["zeta,5,60,1,cpu=1\n", "job-10,0,60,1,cpu=1\n", "alpha,0,60,1,cpu=1\n", "job-2,0,60,1,cpu=1\n"]
    jobs = trace(head + "".join(rows))
    assert [job.name for job in jobs] == ["job-10", "alpha", "job-2", "zeta"]
    waits = [order(waiting(job, Rules("topology"))) for job in jobs[:3]]
    assert waits == sorted(waits), "and wait in it"


def test_every_column_of_a_trace():
    jobs, unknown = read(
        io.StringIO(
            "name,user,arrival,duration,pods,requests,gpu,memory,priority,topology,namespace,queue\n"
            "late,x,1h30m,2d,4,cpu=8,2,64Gi,-5,required=rack,team,a\n"
            '"early",y,10,0.5,1,"cpu = 500m; nvidia.com/gpu=1",,,,,,\n'
        ),
        "t.csv",
        LEVELS,
    )
    assert unknown == ["user"]
    early, late = jobs
    assert (late.key, late.arrival, late.duration, late.priority, late.queue) == ("team/late", 5400, 172800, -5, "a")
    (pods,) = late.pod_sets
    assert (pods.count, pods.requests) == (4, {"cpu": 8000, GPU: 2, "memory": 64 * GIB})
    assert (pods.topology.policy, pods.topology.level) == (Policy.REQUIRED, RACK)
    assert pods.shape is not None
    assert (early.key, early.arrival, early.duration, early.priority) == ("default/early", 10, 0.5, 0)
    assert early.pod_sets[0].requests == {"cpu": 500, GPU: 1}
    assert early.pod_sets[0].topology.policy is Policy.UNCONSTRAINED


def test_dates_count_from_the_first():
    rows = "2026-03-01T08:00:00Z,60,1,cpu=1,\n2026-03-01T07:59:30+00:00,60,1,cpu=1,preferred=auto\n"
    jobs = trace(HEAD + rows)
    assert [(job.name, job.arrival) for job in jobs] == [("job-2", 0), ("job-1", 30)]
    assert jobs[0].pod_sets[0].topology.level == HOSTNAME_LABEL


def test_what_is_written_reads_back_the_same():
    jobs = generate(small().site(), 50, 5, queues=("team-1", "team-2"))
    text = io.StringIO()
    write(jobs, text)
    assert tuple(msgspec.structs.replace(job, row=0) for job in trace(text.getvalue())) == jobs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["t.csv: line 1", "header", "empty"]),
        ("arrival,pods,cpu\n", ["line 1", "lacks duration"]),
        ("arrival,duration,pods\n", ["line 1", "no resource"]),
        ("arrival,duration,pods,cpu,CPU,cpu\n", ["line 1", "'cpu'", "twice"]),
        (HEAD, ["no job"]),
        (HEAD + GOOD + "x,60,1,cpu=1,\n", ["line 3", "'arrival'", "'x'", "1h30m"]),
        (HEAD + "-1,60,1,cpu=1,\n", ["line 2", "'arrival'", "0 or more"]),
        (HEAD + "nan,60,1,cpu=1,\n", ["line 2", "'arrival'", "0 or more"]),
        (HEAD + "2026-13-01,60,1,cpu=1,\n", ["line 2", "'arrival'", "2026-03-01T08:00:00Z"]),
        (HEAD + GOOD + "2026-03-01,60,1,cpu=1,\n", ["line 3", "'arrival'", "mixed"]),
        (HEAD + "0,0,1,cpu=1,\n", ["line 2", "'duration'", "more than 0"]),
        (HEAD + "0,,1,cpu=1,\n", ["line 2", "'duration'", "''"]),
        (HEAD + "0,60,0,cpu=1,\n", ["line 2", "'pods'", "at least 1"]),
        (HEAD + "0,60,1.5,cpu=1,\n", ["line 2", "'pods'", "'1.5'", "whole number"]),
        (HEAD + "0,60,1,cpu,\n", ["line 2", "'requests'", "'cpu'", "cpu=8;memory=64Gi"]),
        (HEAD + "0,60,1,cpu=8x,\n", ["line 2", "'requests'", "'8x'"]),
        (HEAD + "0,60,1,cpu=-8,\n", ["line 2", "'requests'", "expected 0"]),
        (HEAD + "0,60,1,cpu=1;cpu=2,\n", ["line 2", "'requests'", "cpu is given twice"]),
        (HEAD + "0,60,1,pods=1,\n", ["line 2", "'requests'", "pods"]),
        (HEAD + "0,60,1,,\n", ["line 2", "asks for nothing"]),
        (HEAD + "0,60,1,cpu=1,rquired=rack\n", ["line 2", "'topology'", "required=rack"]),
        (HEAD + "0,60,1,cpu=1,required\n", ["line 2", "'topology'"]),
        (HEAD + "0,60,1,cpu=1,required=auto\n", ["line 2", "'topology'", "'auto' means none", RACK]),
        (HEAD + "0,60,1,cpu=1,required=row\n", ["line 2", "'topology'", "'row' means none", RACK]),
        (HEAD + "0,60,1,cpu=1,,,,\n", ["line 2", "8 cells", "5"]),
        (HEAD + '0,60,1,"cpu=1,\n', ["line 2"]),
        ("name," + HEAD + "a," + GOOD + "\nb," + GOOD + "a," + GOOD, ["line 5", "'name'", "default/a", "line 2"]),
        ("priority," + HEAD + "high," + GOOD, ["line 2", "'priority'", "'high'", "whole number"]),
    ],
)
def test_what_is_wrong_with_a_trace_is_told_by_line_and_column(text, says):
    with pytest.raises(Failure) as failure:
        trace(text)
    assert str(failure.value).startswith("t.csv")
    assert [part for part in says if part not in str(failure.value)] == []


def test_times_and_levels():
    assert [seconds(text) for text in ("90", "1.5", "90s", "1h30m", "1w2d")] == [90, 1.5, 90, 5400, 777600]
    assert level_named("rack", LEVELS) == level_named(RACK, LEVELS) == RACK
    with pytest.raises(ValueError, match="several"):
        level_named("rack", ("a/rack", "b/rack"))


def manifest(name="train", **fields):
    template = {
        "metadata": {"annotations": {"topogate.dev/run-seconds": "120"}},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {"cpu": "8", "memory": "64Gi", GPU: "8"}}}],
            "restartPolicy": "Never",
        },
    }
    metadata = {
        "name": name,
        "labels": {"kueue.x-k8s.io/queue-name": "team-a"},
        "annotations": {"kueue.x-k8s.io/require-topology": RACK, "topogate.dev/arrival-seconds": "5m"},
    }
    spec = {"parallelism": 2, "completions": 2, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec} | fields


def jobs_from(files, cluster, **how):
    wanted = read_job_files(files)
    read = known((), Keys(), [file for file in wanted if file.format is JobFormat.MANIFESTS])
    return jobs_in(wanted, cluster, read, **how)


def manifests(tmp_path, *bodies):
    path = tmp_path / "jobs.yaml"
    path.write_text("---\n".join(yaml.safe_dump(body) for body in bodies))
    return str(path)


def test_manifests_with_our_annotations(tmp_path):
    (job,) = jobs_from([manifests(tmp_path, manifest())], cluster(), duration=3600)
    assert (job.key, job.arrival, job.duration, job.queue) == ("default/train", 300, 120, "team-a")
    (pods,) = job.pod_sets
    assert (pods.count, pods.requests) == (2, {"cpu": 8000, "memory": 64 * GIB, GPU: 8})
    assert (pods.topology.policy, pods.topology.level) == (Policy.REQUIRED, RACK)
    assert pods.shape.qos == "Guaranteed"


def test_manifests_in_a_list_with_priority_classes_and_defaults(tmp_path):
    plain = manifest("plain", metadata={"generateName": "plain-", "namespace": "team"})
    plain["spec"] = {"parallelism": 1, "template": {"spec": plain["spec"]["template"]["spec"]}}
    plain["spec"]["template"]["spec"]["priorityClassName"] = "high"
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7}
    listed = {"apiVersion": "v1", "kind": "List", "items": [high, plain]}
    (job,) = jobs_from([manifests(tmp_path, listed)], cluster(), duration=3600)
    assert (job.key, job.arrival, job.duration, job.queue, job.priority) == ("team/plain-1", 0, 3600, "default", 7)
    assert job.pod_sets[0].topology.policy is Policy.UNCONSTRAINED


def test_what_classes_and_jobs_say_about_preemption_is_read_as_the_controller_reads_it(tmp_path):
    said = {"topogate.dev/preemptible": "false"}
    online = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7, "preemptionPolicy": "Never"}
    online["metadata"] = {"name": "online", "annotations": said}
    batch = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "WorkloadPriorityClass", "value": 3}
    batch["metadata"] = {"name": "batch"}
    kept, itself, plain = manifest("kept"), manifest("itself"), manifest("plain")
    kept["spec"]["template"]["spec"] |= {"priorityClassName": "online"}
    itself["metadata"]["annotations"] |= said
    itself["metadata"]["labels"] |= {"kueue.x-k8s.io/priority-class": "batch"}
    jobs = jobs_from([manifests(tmp_path, online, batch, kept, itself, plain)], cluster(), duration=3600)
    found = {job.name: (job.priority, job.preempts, str(job.non_preemptible)) for job in jobs}
    assert found == {
        "kept": (7, False, "ByClass"),
        "itself": (3, True, "ByWorkload"),
        "plain": (0, True, "Never"),
    }


def test_jobs_whose_pods_say_so_are_not_moved(tmp_path):
    unsafe, slow = manifest("unsafe"), manifest("slow")
    unsafe["spec"]["template"]["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"
    slow["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 601
    jobs = jobs_from([manifests(tmp_path, manifest("plain"), unsafe, slow)], cluster(), duration=3600)
    assert {job.name: job.stays for job in jobs} == {"plain": False, "unsafe": True, "slow": True}


def test_a_job_may_say_that_it_goes_by_slices(tmp_path, capsys):
    sliced = manifest("sliced")
    sliced["metadata"]["annotations"] |= {
        "kueue.x-k8s.io/podset-slice-required-topology": HOSTNAME_LABEL,
        "kueue.x-k8s.io/podset-slice-size": "1",
        "topogate.dev/evict-by": "slice",
    }
    jobs = jobs_from([manifests(tmp_path, manifest("plain"), sliced)], cluster(), duration=3600)
    assert {job.name: job.by_slices for job in jobs} == {"plain": False, "sliced": True}
    assert jobs[1].pod_sets[0].topology.slices[0].size == 1
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"spec": {"parallelism": "two", "template": {}}},
            ["line 11, column 16", "Job train", "spec.parallelism", "expected a whole number, found text"],
        ),
        ({"metadata": {}}, ["metadata.name", "is missing"]),
        (
            {"metadata": {"name": "x", "annotations": {"kueue.x-k8s.io/require-topology": "row"}}},
            ["Job x", '"row"', RACK],
        ),
        ({"metadata": {"name": "x", "annotations": {"topogate.dev/arrival-seconds": "soon"}}}, ["arrival", "'soon'"]),
        ({"kind": "CronJob"}, ["there is no Job", "batch/v1"]),
    ],
)
def test_what_is_wrong_with_a_manifest_is_told_by_line_object_and_field(tmp_path, change, says):
    file = manifests(tmp_path, manifest(**change))
    with pytest.raises(Failure) as failure:
        jobs_from([file], cluster(), duration=3600)
    assert file in str(failure.value)
    assert [part for part in says if part not in str(failure.value)] == []


def test_a_class_nobody_described_and_a_job_that_is_there_twice(tmp_path):
    body = manifest()
    body["spec"]["template"]["spec"]["priorityClassName"] = "high"
    with pytest.raises(Failure, match=r"line .*priorityClassName.*'high'"):
        jobs_from([manifests(tmp_path, body)], cluster(), duration=1)
    with pytest.raises(Failure, match="default/train is there twice"):
        jobs_from([manifests(tmp_path, manifest(), manifest())], cluster(), duration=1)


def test_a_trace_is_read_by_its_name_and_may_be_packed(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(("\ufeff" + HEAD + GOOD).encode()))
    (job,) = jobs_from([str(path)], cluster(), duration=1)
    assert job.duration == 60


def node(name, rack="r1", **status):
    has = {"cpu": "8", "memory": "32Gi", GPU: "8", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {RACK: rack, HOSTNAME_LABEL: name}, "creationTimestamp": "2026-01-01"},
        "status": {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}], **status},
    }


def pod(name, where, gpus, phase="Running"):
    container = {"name": "c", "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "x"},
        "spec": {"nodeName": where, "containers": [container]},
        "status": {"phase": phase},
    }


FLAVOR = {
    "apiVersion": "topogate.dev/v1alpha1",
    "kind": "ResourceFlavor",
    "metadata": {"name": "tas"},
    "spec": {"topology": {"levels": [RACK, HOSTNAME_LABEL]}},
}


LATER = "{kind: ClusterQueue, apiVersion: topogate.dev/v1alpha1, metadata: {name: q}, spec: {stopPolicy: Later}}"


def dumped(tmp_path, *items, name="cluster.yaml"):
    path = tmp_path / name
    body = {"apiVersion": "v1", "kind": "List", "items": items}
    text = json.dumps(body) if name.endswith("json") else yaml.safe_dump(body)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster.json"])
def test_a_recorded_cluster(tmp_path, name, capsys):
    items = (node("n1"), node("n2"), FLAVOR, pod("a", "n1", 3), pod("done", "n1", 5, "Succeeded"), pod("wait", "", 1))
    other = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    found = recorded(known([dumped(tmp_path, *items, other, name=name)], Keys()), ())
    assert capsys.readouterr().err == "not read: 1 Service\n"
    assert [one.name for one in found.nodes] == ["n1", "n2"]
    assert [(one.key, one.node, one.requests) for one in found.pods] == [("x/a", "n1", {GPU: 3})]
    assert found.flavors[0].levels == (RACK, HOSTNAME_LABEL)
    assert recorded(known([dumped(tmp_path, *items)], Keys()), (), empty=True).pods == ()


def test_a_recorded_tree_of_cohorts_lends_as_it_does_in_the_cluster(tmp_path):
    def of(kind, name, amount, **spec):
        flavor = {"name": "tas", "resources": [{"name": GPU, "nominalQuota": amount}]}
        groups = [{"coveredResources": [GPU], "flavors": [flavor]}] if amount else []
        head = {"apiVersion": "topogate.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
        return {**head, "spec": {"resourceGroups": groups, **spec}}

    tree = (
        of("Cohort", "org", 4),
        of("Cohort", "research", 0, parentName="org"),
        of("ClusterQueue", "a", 2, cohortName="research"),
        of("ClusterQueue", "b", 8, cohortName="org"),
    )
    cluster = recorded(known([dumped(tmp_path, node("n1"), FLAVOR, *tree)], Keys()), ())
    queues = queues_of(cluster, Rules("as they say"), SimulatorOptions(), ())
    assert queues.quotas.limit("a", ("tas", GPU)) == 2 + 8 + 4


def test_several_documents_of_kinds_of_their_own_lists(tmp_path):
    nodes = {"apiVersion": "v1", "kind": "NodeList", "items": [{k: v for k, v in node("n1").items() if k != "kind"}]}
    path = tmp_path / "many.yaml"
    path.write_text("---\n" + yaml.safe_dump(nodes) + "---\n---\n" + yaml.safe_dump(pod("p", "n1", 1)))
    found = recorded(known([str(path)], Keys()), (RACK, HOSTNAME_LABEL))
    assert (len(found.nodes), len(found.pods)) == (1, 1)
    assert found.flavors[0].levels == (RACK, HOSTNAME_LABEL)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: 2\n", ["line 2", "column", "expected"]),
        ("- 1\n", ["line 1", "Kubernetes object"]),
        ("kind: List\nitems:\n- 5\n", ["line 3", "item 0"]),
        (
            "kind: Node\napiVersion: v1\nmetadata:\n  name: n\nspec:\n  unschedulable: maybe\n",
            ["line 6, column 18", "Node n", "spec.unschedulable", "expected true or false"],
        ),
        (
            "kind: List\nitems:\n- kind: Node\n  apiVersion: v1\n  metadata:\n    name: n\n    labels: {a: [1]}\n",
            ["line 7", "Node n", "metadata.labels"],
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: n}\nstatus: {allocatable: {cpu: 8x}}\n",
            ["'8x'", "cpu"],
        ),
        ("kind: Pod\napiVersion: v1\nmetadata: {name: p}\n", ["no Node", "kubectl get"]),
        (
            "kind: Node\nmetadata: {name: n}\n---\n" + LATER,
            ["'Later'"],
        ),
        ("", ["no Node"]),
    ],
)
def test_what_is_wrong_with_a_recorded_cluster(tmp_path, text, says):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(Failure) as failure:
        recorded(known([str(path)], Keys()), ())
    assert str(path) in str(failure.value)
    assert [part for part in says if part not in str(failure.value)] == []


def test_levels_that_no_node_has_and_files_that_are_missing(tmp_path):
    file = dumped(tmp_path, node("n1"))
    with pytest.raises(Failure, match=r"--level example.com/row: no node.*topology-rack"):
        recorded(known([file], Keys()), ("example.com/row",))
    with pytest.raises(Failure, match="leave it out"):
        recorded(known([dumped(tmp_path, node("n1"), FLAVOR)], Keys()), (RACK,))
    with pytest.raises(Failure, match="cannot read"):
        dumps.read([str(tmp_path / "nothing.yaml")])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"kind: Node")[:-9])
    with pytest.raises(Failure):
        dumps.read([str(tmp_path / "cut.gz")])


def test_policies():
    one, two = policies(["topology+preemption", "count-only-pack+strict+no-claims"])
    assert (one.placing, one.preemption, one.claiming) == (Placing.TOPOLOGY, True, True)
    assert (two.placing, two.strict, two.claiming) == (Placing.PACK, True, False)
    (three,) = policies(["topology+minimal"])
    assert (three.preemption, three.strategy) == (True, "IncrementalMinimal")
    words = ("align-never", "align-used-nodes", "align-used-domains", "align-always")
    assert [one.alignment for one in policies([f"topology+{word}" for word in words])] == list(AlignmentOverPacking)
    assert [one.opening for one in policies(["topology", "topology+hosts-first"])] == [NODES_PER_OPENED_DOMAIN, 0]
    for wrong, says in (
        ("random", "'random'"),
        ("topology+fast", "'fast'"),
        ("topology,topology", "twice"),
        ("", "such as"),
    ):
        with pytest.raises(Failure, match=says):
            policies([wrong])


def test_machines_of_generated_clusters():
    found = cluster(machine="2 sockets / 2 NUMA / 32 cores / 8 GPUs", kubelet="single-numa-node")
    assert len(found.machines) == len(found.nodes) == 4
    assert {machine.node for machine in found.machines} == {one.name for one in found.nodes}
    assert all(machine.layout.exact and len(machine.layout.zones) == 2 for machine in found.machines)
    with pytest.raises(Failure, match="--machine"):
        cluster(machine="no machine")
    with pytest.raises(Failure, match="give --machine too"):
        cluster(kubelet="restricted")
    with pytest.raises(Failure, match="--cpu"):
        cluster(cpu="many")


def test_what_cannot_be_read_of_a_cluster_is_left_out_and_told(tmp_path, capsys):
    bad = [{**node(f"bad-{number:02}"), "status": {"allocatable": {"cpu": "8x"}}} for number in range(10)]
    memory = cluster_snapshot.cache_of(dumps.read([dumped(tmp_path, node("n1"), *bad)]), Settings())
    assert list(memory.state.nodes) == ["n1"]
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("left out: node bad-00 cannot be read: cpu: '8x' is not a quantity")
    assert last == "left out: 2 more objects"


def test_owners_that_tell_their_pods_are_known_as_the_controller_knows_them(tmp_path):
    keys = Settings().keys
    asks = {keys.unconstrained: "true"}
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    template = {"metadata": {"annotations": asks}, "spec": spec}
    made = {"namespace": "ns", "creationTimestamp": "2026-11-21T00:00:00Z"}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "bert", "uid": "u-bert", **made},
        "spec": {
            "pytorchReplicaSpecs": {"Master": {"template": template}, "Worker": {"replicas": 3, "template": template}}
        },
    }
    controller = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "bert", "uid": "u-bert"}
    first = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "bert-master-0",
            "uid": "u-pod",
            **made,
            "labels": {"training.kubeflow.org/replica-type": "master"},
            "annotations": asks,
            "ownerReferences": [{**controller, "controller": True}],
        },
        "spec": {**spec, "schedulingGates": [{"name": keys.gate}]},
    }
    found = dumps.read([dumped(tmp_path, node("n1"), job, first)])
    assert found.ignored == {}
    (record,) = cluster_snapshot.cache_of(found, Settings()).entries.values()
    assert record.job.name == "bert"
    assert str(record.job.wrong) == "1 of 4 pods are there; they are placed together when all are"


def test_levels_by_the_names_that_flavors_give_them(tmp_path):
    named = replace(cluster(), names={"default": {"shelf": RACK}})
    body = manifest()
    body["metadata"]["annotations"]["kueue.x-k8s.io/require-topology"] = "shelf"
    path = manifests(tmp_path, body)
    (job,) = jobs_from([path], named, duration=1)
    assert job.pod_sets[0].topology.level == RACK
    with pytest.raises(Failure, match="shelf"):
        jobs_from([path], cluster(), duration=1)
    (tmp_path / "t.csv").write_text(HEAD + "0,60,1,cpu=1,required=shelf\n")
    (job,) = jobs_from([str(tmp_path / "t.csv")], named, duration=1)
    assert job.pod_sets[0].topology.level == RACK
