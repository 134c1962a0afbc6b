"""Exclusive placement: what the webhooks of JobSet and LeaderWorkerSet put into pods holds before there are pods."""

from collections import Counter

import msgspec
import pytest
from support.owned import KEYS, make_known
from support.world import FLAVOR, World, make_node, stored_workload

from crds.constants import JOB_INDEX_LABEL, JOB_SET_INDEX, JOB_SET_ROLE, WORKER_INDEX
from engine.model import HOSTNAME_LABEL
from engine.placement.place import replace
from engine.reasons import Reason
from engine.results import Refusal
from kube.objects import Job, NodeSpec, Pod, PriorityClass, Taint
from kube.parents import JobSet, LeaderWorkerSet
from kube.pods.exclusive import GROUP_KEY, JOB_KEY, JOB_SET_NAME, NAMESPACED_JOB, NO_SCHEDULE, PRIORITY, group_key_of
from queueing.cycle.cycle import cycle
from queueing.model import plain
from ungater.jobs import leaderworkerset
from ungater.jobs.exclusive_topology import BY_NODE_LABEL, GROUPS, JOB_SET, SUBGROUPS
from ungater.jobs.jobset import owner_of_jobset
from ungater.jobs.leaderworkerset import owner_of_group
from ungater.model import workload_spec

RACK = "rack"
ALONE = {JOB_SET: RACK}
ANYWHERE = {KEYS.unconstrained: "true"}
GATE = [{"name": KEYS.gate}]


def decoded(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def template(annotations=None, **spec):
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    return {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [container], "schedulingGates": GATE, **spec},
    }


def jobset(name="js", roles=(("workers", 1, 2),), *, annotations=ALONE, on_job=None, completions=None, **spec):
    """``roles``: (name, replicas, pods of each Job)."""
    jobs = [
        {
            "name": role,
            "replicas": replicas,
            "template": {
                "metadata": {"annotations": on_job or {}},
                "spec": {
                    "completionMode": "Indexed",
                    "parallelism": pods,
                    "completions": completions or pods,
                    "template": template(**spec),
                },
            },
        }
        for role, replicas, pods in roles
    ]
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "annotations": {**ANYWHERE, **annotations}}
    meta |= {"resourceVersion": "1", "creationTimestamp": "2026-11-21T00:00:00Z"}
    return decoded({"metadata": meta, "spec": {"replicatedJobs": jobs}}, JobSet)


def group(name="lws", *, size=3, annotations=None, leader=True, subgroups=None, on_pods=None):
    shape = {"size": size, "workerTemplate": template(on_pods)}
    shape |= {"leaderTemplate": template(on_pods)} if leader else {}
    shape |= {"subGroupPolicy": {"subGroupSize": subgroups}} if subgroups else {}
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "annotations": {**ANYWHERE, **(annotations or {})}}
    return decoded({"metadata": meta, "spec": {"leaderWorkerTemplate": shape}}, LeaderWorkerSet)


def leader_pod(name="lws", number=0):
    labels = {leaderworkerset.NAME: name, leaderworkerset.GROUP: str(number), WORKER_INDEX: "0"}
    labels[GROUP_KEY] = group_key_of("ns", f"{name}-{number}")
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": f"u-sts-{name}", "controller": True}
    meta = {"name": f"{name}-{number}", "namespace": "ns", "uid": f"u-{name}-{number}", "labels": labels}
    meta |= {"ownerReferences": [owner], "annotations": ANYWHERE, "creationTimestamp": "2026-11-21T00:00:00Z"}
    return decoded({"metadata": meta, "spec": template()["spec"]}, Pod)


def term(label, value, *, others, namespaces=None, priority=None):
    """As the webhooks write it."""
    own = [{"key": label, "operator": "In", "values": [value]}]
    other = [{"key": label, "operator": "Exists"}, {"key": label, "operator": "NotIn", "values": [value]}]
    if priority is not None:
        other.append({"key": PRIORITY, "operator": "In", "values": [priority]})
    where = {"namespaceSelector": {}} if namespaces is None else {}
    return {"labelSelector": {"matchExpressions": other if others else own}, "topologyKey": RACK, **where}


def running(name, node, labels, *terms, namespace="ns"):
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}} if terms else None
    spec = {**template()["spec"], "schedulingGates": [], "nodeName": node, "affinity": affinity}
    meta = {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels}
    return decoded({"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, Pod)


def of_job(jobset_name="other", role="workers", index=0, **more):
    own = {JOB_SET_NAME: jobset_name, JOB_SET_ROLE: role, JOB_SET_INDEX: str(index), JOB_INDEX_LABEL: "0"}
    return own | {JOB_KEY: f"hash-of-{jobset_name}-{role}-{index}"} | more


class Sets(World):
    """Four racks of two hosts of two CPUs, JobSets and LeaderWorkerSets."""

    def __init__(self):
        self.jobsets, self.leader_sets = {}, {}
        super().__init__()
        self.put("flavor", FLAVOR)
        for rack in ("r1", "r2", "r3", "r4"):
            for host in ("h1", "h2"):
                self.put("node", make_node(rack, host))

    def add(self, made):
        """A JobSet, or the first group of a LeaderWorkerSet: its record."""
        name = f"ns/{made.metadata.name}"
        if isinstance(made, JobSet):
            self.jobsets[name] = made
            self.memory.jobs.set_jobset(made)
            return self.memory.entries[f"ns/{made.metadata.uid}"]
        self.leader_sets[name] = made
        pod = leader_pod(made.metadata.name)
        self.put("pod", pod)
        return self.memory.entries[leaderworkerset.group_key(pod)]

    def place(self, made):
        """By pod set the racks and how many pods are in each; else the refusal."""
        record = self.add(made)
        record.observed = make_known(record.job)
        self.memory.admissions.enqueue_entry(record)
        admitted = cycle(self.memory.state, self.memory.queues, 0.0).admitted
        if not admitted:
            return self.memory.queues.entries[record.key].refusal
        (one,) = admitted
        self.memory.admissions.store_admission(
            record, self.memory.reservations.admission_of(record, one.grant), one.grant
        )
        found = {}
        for name, slots in record.slots_in.items():
            counts = Counter()
            for slot in slots.slots:
                counts[slot.values[1]] += slot.count
            found[name] = dict(counts)
        return found


@pytest.fixture
def world():
    return Sets()


def test_each_job_has_a_rack_alone_though_one_rack_has_room_for_all(world):
    """Four Jobs of one pod, in racks for four: the fewest domains would be one."""
    assert world.place(jobset(roles=[("workers", 4, 1)])) == {"workers": {"r1": 1, "r2": 1, "r3": 1, "r4": 1}}


def test_a_job_is_not_split_over_racks(world):
    assert sorted(world.place(jobset(roles=[("workers", 3, 3)]))["workers"].values()) == [3, 3, 3]


def test_more_jobs_than_racks_wait(world):
    found = world.place(jobset(roles=[("workers", 5, 1)]))
    assert isinstance(found, Refusal)
    assert "alone in one rack" in found.message


def test_racks_of_one_name_in_two_blocks_are_one_rack_to_the_scheduler(world):
    for rack, block in (("r1", "c"), ("r2", "c")):
        for host in ("h3", "h4"):
            node = make_node(rack, host)
            labels = {**node.metadata.labels, "block": block}
            metadata = msgspec.structs.replace(node.metadata, labels=labels)
            world.put("node", msgspec.structs.replace(node, metadata=metadata))
    found = world.place(jobset(roles=[("workers", 4, 3)]))["workers"]
    assert found == dict.fromkeys(("r1", "r2", "r3", "r4"), 3)
    assert isinstance(world.place(jobset("more", roles=[("workers", 1, 1)])), Refusal)


def test_jobs_of_several_kinds_keep_off_one_another(world):
    found = world.place(jobset(roles=[("driver", 1, 1), ("workers", 2, 2)]))
    racks = [rack for counts in found.values() for rack in counts]
    assert len(racks) == len(set(racks)) == 3


def test_only_the_replicated_jobs_that_ask_for_it_are_alone_and_the_others_keep_off_them(world):
    made = jobset(annotations={}, roles=[("driver", 1, 1), ("workers", 2, 2)])
    jobs = list(made.spec.replicated_jobs)
    alone = msgspec.structs.replace(jobs[1].template.metadata, annotations=ALONE)
    jobs[1] = msgspec.structs.replace(jobs[1], template=msgspec.structs.replace(jobs[1].template, metadata=alone))
    made = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, replicated_jobs=tuple(jobs)))
    found = world.place(made)
    assert len({*found["driver"], *found["workers"]}) == 3


def test_a_second_jobset_goes_to_other_racks_before_the_first_has_pods(world):
    first = world.place(jobset("one", roles=[("workers", 2, 1)]))["workers"]
    second = world.place(jobset("two", roles=[("workers", 2, 1)]))["workers"]
    assert not first.keys() & second.keys()
    assert isinstance(world.place(jobset("three", annotations={})), Refusal), "its pods carry the label too"


def test_a_jobset_that_asks_for_nothing_of_that_keeps_off_and_plain_jobs_do_not(world):
    world.place(jobset("one", roles=[("workers", 3, 1)]))
    assert world.place(jobset("two", annotations={}))["workers"].keys() == {"r4"}
    pod = world.memory.state.pod_groups()
    assert all(GROUP_KEY not in one.labels for one in pod)


def test_pods_that_run_keep_off_those_that_come_whatever_their_namespace(world):
    keeps_off = term(JOB_KEY, "hash-of-other-workers-0", others=True)
    world.put("pod", running("leader", "r1-h1", of_job(), keeps_off, namespace="theirs"))
    world.put("pod", running("plain", "r2-h1", of_job("more")))
    found = world.place(jobset(roles=[("workers", 2, 2)]))["workers"]
    assert found.keys() == {"r3", "r4"}


def test_only_jobs_of_one_priority_keep_off_one_another_where_jobset_tells_it(world):
    world.put("class", decoded({"metadata": {"name": "low"}, "value": -5}, PriorityClass))
    other = of_job(**{PRIORITY: "0"})
    world.put("pod", running("r1", "r1-h1", other, term(JOB_KEY, other[JOB_KEY], others=True, priority="0")))
    for rack in ("r2", "r3", "r4"):
        labels = of_job(index=int(rack[1]), **{PRIORITY: "n5"})
        keeps_off = term(JOB_KEY, labels[JOB_KEY], others=True, priority="n5")
        world.put("pod", running(rack, f"{rack}-h1", labels, keeps_off))
    assert world.place(jobset("low", priorityClassName="low"))["workers"].keys() == {"r1"}


def test_pods_of_its_own_do_not_keep_off_what_moves_and_a_job_that_moves_gets_a_free_rack(world):
    record = world.add(jobset(roles=[("workers", 2, 2)]))
    found = world.place(jobset(roles=[("workers", 2, 2)]))["workers"]
    kept, left = sorted(found)
    own = of_job("js", index=0)
    world.put("pod", running("a", f"{kept}-h1", own, term(JOB_KEY, own[JOB_KEY], others=True)))
    lost = tuple(node for node in world.memory.state.nodes if node.startswith(left))
    for name in lost:
        world.drop("node", world.stores["node"][f"{name}"])
    world.memory.state.rebuild()
    pod_set = world.memory.pod_sets.wish(record)[0]
    moved = replace(world.memory.state, record.key, pod_set, lost)
    racks = Counter({part.values[1]: 0 for part in moved.slices})
    for part in moved.slices:
        racks[part.values[1]] += part.count
    assert racks.pop(kept) == 2
    assert list(racks.values()) == [2], "the other Job, in a rack that neither had"


def test_what_is_held_for_pods_to_come_keeps_others_off_after_a_restart(world):
    record = world.add(jobset("one", roles=[("workers", 4, 1)]))
    world.place(jobset("one", roles=[("workers", 4, 1)]))
    world.put("workload", stored(record))
    again = Sets.make(world)
    stores = (world.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
    for _ in again.load(*stores, jobsets=world.jobsets.values()):
        pass
    world.memory = again
    assert again.entries["ns/u-one"].slots_in
    assert isinstance(world.place(jobset("two")), Refusal)


def stored(record):
    return stored_workload(record.job, record.admission)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (jobset(roles=[("workers", 2, 2)], completions=4), "make the two equal"),
        (jobset(roles=[("workers", 2, 2)], annotations={**ALONE, BY_NODE_LABEL: ""}), "only a replicated job with 1"),
    ],
)
def test_what_cannot_be_said_of_templates_is_refused_with_its_reason(made, text):
    wrong = owner_of_jobset(made, (), KEYS).wrong
    assert wrong.reason is Reason.UNSUPPORTED_CONSTRAINT
    assert text in str(wrong)
    assert JOB_SET in wrong.field


def test_a_level_that_no_flavor_has_is_told(world):
    for node in list(world.stores["node"].values()):
        labels = {**node.metadata.labels, "cloud/pool": node.metadata.labels[RACK]}
        world.put("node", msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)))
    one = world.place(jobset("one", annotations={JOB_SET: "cloud/pool"}))
    assert one.reason is Reason.UNSUPPORTED_CONSTRAINT
    several = world.place(jobset("two", [("workers", 2, 1)], annotations={JOB_SET: "cloud/pool"}))
    assert several.reason is Reason.UNKNOWN_LEVEL
    assert all("cloud/pool" in found.message for found in (one, several))


def test_with_a_queue_it_holds_where_nothing_else_is_asked_for():
    made = jobset(roles=[("driver", 1, 1), ("workers", 3, 2)])
    labels = {KEYS.queue_name: "team"}
    queued = msgspec.structs.replace(made.metadata, annotations=ALONE, labels=labels)
    driver, workers = owner_of_jobset(msgspec.structs.replace(made, metadata=queued), (), KEYS).pod_sets
    assert driver.request is None
    assert workers.request.slices[0].alone
    alone = msgspec.structs.replace(made.metadata, annotations=ALONE)
    assert owner_of_jobset(msgspec.structs.replace(made, metadata=alone), (), KEYS).request is None, "nobody places it"


def test_nodes_that_somebody_labels_and_taints_for_a_job_are_its_own(world):
    made = jobset(annotations={**ALONE, BY_NODE_LABEL: "true"})
    assert isinstance(world.place(made), Refusal), "nobody labelled any"
    node = make_node("r3", "h1")
    labels = {**node.metadata.labels, NAMESPACED_JOB: "ns_js-workers-0"}
    tainted = NodeSpec(taints=(Taint(key=NO_SCHEDULE, effect="NoSchedule", value="true"),))
    world.put(
        "node",
        msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels), spec=tainted),
    )
    assert world.place(made) == {"workers": {"r3": 2}}


def test_slices_of_jobs_are_told_in_the_workload():
    (pod_set,) = workload_spec.new_workload(owner_of_jobset(jobset(roles=[("workers", 3, 2)]), (), KEYS), 0)["spec"][
        "podSets"
    ]
    assert pod_set["topologyRequest"]["podSetSliceRequiredTopology"] == RACK
    assert pod_set["topologyRequest"]["podSetSliceSize"] == 2


def test_a_job_that_is_partly_done_keeps_its_rack():
    """Its slots go back once all of it is done, so that the others keep theirs."""
    labels = {JOB_SET_ROLE: "workers", JOB_SET_INDEX: "0"}
    spec = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": template()}
    meta = {"name": "js-workers-0", "namespace": "ns", "uid": "u-0", "labels": labels}
    body = {"metadata": meta, "spec": spec, "status": {"succeeded": 1, "completedIndexes": "0", "active": 1}}
    made = jobset(roles=[("workers", 2, 2)])
    assert owner_of_jobset(made, [decoded(body, Job)], KEYS).pod_sets[0].count == 4
    body["status"] = {"succeeded": 2, "completedIndexes": "0-1"}
    assert owner_of_jobset(made, [decoded(body, Job)], KEYS).pod_sets[0].count == 2


@pytest.mark.parametrize("level", ["", "x" * 200_000])
def test_what_no_label_can_be_called_costs_nothing_and_is_refused(level):
    for roles in ([("workers", 1, 2)], [("workers", 2, 2)]):
        owner = owner_of_jobset(jobset(roles=roles, annotations={JOB_SET: level}), (), KEYS)
        assert owner.wrong.reason is Reason.UNSUPPORTED_CONSTRAINT
        assert len(str(owner.wrong)) < 300
        assert not owner.pod_sets[0].added.affinity
    if level:
        for annotation in (GROUPS, SUBGROUPS):
            made = group(annotations={annotation: level}, leader=False, subgroups=1)
            owner = owner_of_group(leaderworkerset.group_key(leader_pod()), [leader_pod()], made, KEYS, None, {}.get)
            assert (owner.wrong.reason, len(str(owner.wrong)) < 300) == (Reason.UNSUPPORTED_CONSTRAINT, True)
            assert not owner.pod_sets[0].added.anti_affinity


@pytest.mark.parametrize("size", [-5, 0, 1 << 31])
def test_sizes_that_make_no_sense_or_are_enormous_are_arithmetic(world, size):
    made = group(size=4, annotations={SUBGROUPS: RACK}, leader=False, subgroups=size)
    assert world.add(made).job.pod_sets[0].count == 4
    assert isinstance(world.place(jobset(roles=[("workers", (1 << 31) - 1, 1)])), Refusal)


def test_its_pods_come_one_after_another():
    """The webhook lets the others be made only once the first pod of their Job has a node."""
    assert owner_of_jobset(jobset(), (), KEYS).in_order
    assert not owner_of_jobset(jobset(annotations={}), (), KEYS).in_order


@pytest.mark.parametrize("leader", [True, False])
@pytest.mark.parametrize(
    "level", [{}, {KEYS.required[0]: RACK}, {KEYS.preferred[0]: HOSTNAME_LABEL}, {KEYS.required[0]: "block"}]
)
def test_each_group_has_a_rack_alone(world, leader, level):
    asks = {GROUPS: RACK, **level}
    names = ("a", "b", "c", "d")
    racks = [set().union(*world.place(group(name, annotations=asks, leader=leader)).values()) for name in names]
    assert sorted(racks, key=str) == [{"r1"}, {"r2"}, {"r3"}, {"r4"}]
    assert isinstance(world.place(group("e", annotations=asks, leader=leader)), Refusal)
    assert isinstance(world.place(group("f", leader=leader)), Refusal), "its pods carry the label too"


def test_a_group_keeps_off_groups_that_run_in_its_namespace_alone(world):
    for rack, namespace in (("r1", "ns"), ("r2", "theirs")):
        keeps_off = term(GROUP_KEY, rack, others=True, namespaces=())
        world.put("pod", running(rack, f"{rack}-h1", {GROUP_KEY: rack}, keeps_off, namespace=namespace))
    world.put("pod", running("plain", "r3-h1", {GROUP_KEY: "r3"}))
    found = {rack for name in ("a", "b") for rack in world.place(group(name, annotations={GROUPS: RACK}))["workers"]}
    assert found == {"r2", "r4"}


def test_leader_and_workers_have_one_rack_that_holds_them_all(world):
    """The tightest rack for the leader is not the one for the workers too."""
    for number in range(2):
        world.put("pod", running(f"x{number}", f"r1-h{number + 1}", {}))
    found = world.place(group(size=4, annotations={GROUPS: RACK}))
    assert found["leader"].keys() == found["workers"].keys() != {"r1"}


def test_each_subgroup_has_a_rack_alone(world):
    found = world.place(group(size=6, annotations={SUBGROUPS: RACK}, leader=False, subgroups=2))
    assert sorted(found["main"].values()) == [2, 2, 2]
    assert isinstance(
        world.place(group("b", size=4, annotations={SUBGROUPS: RACK}, leader=False, subgroups=2)), Refusal
    )


@pytest.mark.parametrize(("size", "leader"), [(5, False), (4, True)])
def test_subgroups_that_are_no_runs_of_pods_alike_are_refused_with_the_reason(size, leader):
    made = group(size=size, annotations={SUBGROUPS: RACK}, leader=leader, subgroups=2)
    wrong = owner_of_group(leaderworkerset.group_key(leader_pod()), [leader_pod()], made, KEYS, None, {}.get).wrong
    assert wrong.reason is Reason.UNSUPPORTED_CONSTRAINT
    assert SUBGROUPS in str(wrong)


def test_a_subgroup_that_is_the_whole_group_is_as_a_group(world):
    found = world.place(group(size=3, annotations={SUBGROUPS: RACK}, subgroups=3))
    assert found["leader"].keys() == found["workers"].keys()


@pytest.mark.parametrize("make", [lambda name: jobset(name, annotations={}), group])
def test_those_that_are_alike_but_for_what_tells_them_apart_get_one_answer(world, make):
    """Else each of very many that wait is asked about."""
    one, other = (world.memory.pod_sets.wish(world.add(make(name))) for name in ("one", "two"))
    assert one != other
    assert [plain(pod_set) for pod_set in one] == [plain(pod_set) for pod_set in other]
