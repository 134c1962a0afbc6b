"""The judge of histories knows what takes more than the quota, and what a deleted Workload held before."""

import pytest
from support.history.judge import GROWS, LAG, Judge
from support.history.loop import Loop
from support.history.server import CONTROLLER, GATE, MARK, NAMESPACE, Server, container, make_object
from support.history.stored import HOSTNAME, name_of
from support.history.trees import CohortTrees

from kube import resources

WITHOUT_TREE = 2  # a seed


class World:
    """A queue with a quota of 6, all of which one Job has; another Job had 3 more, as its quota was larger."""

    def __init__(self, loop):
        self.server = Server(loop)
        trees = CohortTrees(self.server, WITHOUT_TREE, lambda *_: None)
        assert not trees.there
        self.judge = Judge(self.server, trees)
        quota = {"flavors": [{"resources": [{"nominalQuota": "6"}]}]}
        self.server.create(
            "clusterqueues", make_object(resources.CLUSTER_QUEUES, "cq", {"resourceGroups": [quota]}), "admin"
        )
        self.jobs = {name: self.create("jobs", resources.JOBS, name, {"parallelism": 1}) for name in ("all", "more")}
        self.admit(self.made("all"), 6)

    def create(self, plural, resource, name, spec, **metadata):
        metadata["namespace"] = NAMESPACE
        return self.server.create(plural, make_object(resource, name, spec, **metadata), CONTROLLER)

    def made(self, job):
        uid = self.jobs[job]["metadata"]["uid"]
        owner = {"kind": "Job", "name": job, "uid": uid, "controller": True}
        spec = {"podSets": [{"name": "main", "count": 0, "template": {"spec": {"containers": []}}}]}
        return self.create("workloads", resources.WORKLOADS, f"job-{job}-1", spec, ownerReferences=[owner])

    def admit(self, workload, cpu):
        part = {"name": "main", "count": 0, "resourceUsage": {"cpu": str(cpu)}}
        admission = {"clusterQueue": "cq", "podSetAssignments": [part]}
        status = {"admission": admission}
        return self.server.store(workload, {**workload, "status": status}, CONTROLLER, "status")

    def runs(self, name, job, node, **status):
        """A pod that was let go and sent to a node."""
        owner = {"kind": "Job", "name": job, "uid": self.jobs[job]["metadata"]["uid"], "controller": True}
        marks = {"annotations": {MARK: f"job-{job}-1"}, "ownerReferences": [owner]}
        spec = {"containers": [container(1)], "nodeSelector": {HOSTNAME: node}}
        pod = self.create("pods", resources.PODS, name, spec, **marks)
        self.server.store(pod, {**pod, "status": {"phase": "Pending", **status}}, "scheduler", "status")

    def place(self, workload, what="admission", /, **slots):
        """It has so many slots on each of some nodes, or is to get them (``nomination``)."""
        slices = [{"nodeLabels": {HOSTNAME: node}, "count": count} for node, count in slots.items()]
        assignment = {"levels": [HOSTNAME], "slices": slices}
        part = {"name": "main", "count": sum(slots.values()), "topologyAssignment": assignment}
        status = {**workload.get("status", {}), what: {"clusterQueue": "", "podSetAssignments": [part], "victims": []}}
        return self.server.store(workload, {**workload, "status": status}, CONTROLLER, "status")

    def said(self):
        found, self.judge.wrong = self.judge.wrong, []
        return found


@pytest.fixture(name="world")
def fixture_world():
    loop = Loop(None)
    yield World(loop)
    loop.close()


def test_what_is_admitted_anew_beyond_the_quota_is_found(world):
    assert world.said() == []
    world.admit(world.made("more"), 3)
    assert world.said() == ["ns/job-more-1: queues ['cq'] use 9 of 6 cpu"]


@pytest.mark.parametrize("times", [1, 3])
def test_what_was_deleted_holds_again_what_it_held_however_often_it_was_made_anew(world, times):
    """Its pods run on. That it was deleted once more before it held anything again gives nothing back."""
    last = world.admit(world.made("more"), 3)
    world.said()
    for _ in range(times):
        world.server.delete(last, "garbage collector")
        last = world.made("more")
    world.admit(last, 3)
    assert world.said() == []


@pytest.mark.parametrize("refused", [False, True])
def test_a_slot_may_move_before_its_pod_is_deleted_where_kube_scheduler_refuses_that(world, refused):
    for node in ("n0", "n1"):
        status = {"allocatable": {"cpu": "8", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]}
        made = make_object(resources.NODES, node, {}, labels={HOSTNAME: node})
        world.server.create("nodes", {**made, "status": status}, "admin")
    workload = world.place(world.made("more"), n0=2)
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    world.runs("starts", "more", "n0")
    world.runs("refused", "more", "n0", **({"conditions": conditions} if refused else {}))
    world.server.loop.now += 2 * LAG  # since the node was made
    assert world.said() == []
    world.place(workload, n0=1, n1=1)
    assert len(world.said()) == (not refused)


def test_who_waits_for_a_pod_that_takes_its_time_holds_what_it_is_to_get_and_others_what_is_stored(world):
    going = world.server.get("workloads", "job-all-1", NAMESPACE)
    conditions = [{"type": "Evicted", "status": "True", "reason": "Preempted"}]
    world.server.store(going, {**going, "status": {"conditions": conditions}}, CONTROLLER, "status")
    world.runs("slow", "all", "n0")  # on its way out once it is deleted
    pod = world.server.get("pods", "slow", NAMESPACE)
    bound = world.server.change(pod, lambda one: one["spec"].update(nodeName="n0"), "scheduler")
    world.jobs |= {name: world.create("jobs", resources.JOBS, name, {"parallelism": 1}) for name in ("new", "grows")}
    runs, waits, grows = (world.made(name) for name in ("more", "new", "grows"))
    world.place(runs, n0=2)
    world.place(waits, "nomination", n1=1)
    world.place(world.place(grows, n2=1), "nomination", n3=3)
    own = {name_of(runs): [(("n0",), 2)], name_of(grows): [(("n2",), 1)]}
    assert world.judge.slots_to_hold() == own, "nobody is on the way out, so nothing of a plan may be left"
    world.server.delete(bound, CONTROLLER, grace=900)
    planned = {name_of(waits): [(("n1",), 1)], f"{name_of(grows)}{GROWS}": [(("n3",), 3)]}
    assert world.judge.slots_to_hold() == own | planned


@pytest.mark.parametrize(("marked", "takes"), [("job-all-1", 1), ("job-more-1", 0), ("never-was", 0)])
def test_a_pod_that_somebody_had_say_by_which_workload_it_runs_may_be_charged_as_that_ended(world, marked, takes):
    """It was let go without a queue, and says nothing of a quota; no policy keeps a tenant from marking it."""
    world.place(world.made("more"), n0=1)
    spec = {"containers": [container(1)], "schedulingGates": [{"name": GATE}]}
    pod = world.create("pods", resources.PODS, "p", spec)
    pod = world.server.store(pod, {**pod, "status": {"phase": "Pending"}}, "scheduler", "status")

    def let_go(one):
        del one["spec"]["schedulingGates"]
        one["metadata"]["annotations"] = {MARK: "job-more-1"}

    pod = world.server.change(pod, let_go, CONTROLLER)
    for mark in ("other", marked):
        pod = world.server.change(
            pod, lambda one, mark=mark: one["metadata"].update(annotations={MARK: mark}), "tenant"
        )
    payers = world.judge.payers
    assert payers.may_take(pod, "cq") == 0, "a Workload pays for it as long as it is there"
    for each in world.server.all("workloads"):
        world.server.delete(each, "garbage collector")
    assert payers.may_take(pod, "cq") == takes
    assert payers.may_take(pod, "another") == 0
