"""Devices of claims, and extended resources that DeviceClasses stand for, as amounts of quota."""

import msgspec
import pytest
from support.claims_world import ONE, a_class, a_pod, publishing, read, spec
from support.equipped import META, Equipped, claim, template
from support.owned import KEYS, make_job, make_known

from crds.admitted_quota import AdmittedQuota, encode
from crds.constants import ADMITTED_QUOTA
from engine.quantity import MOST
from engine.reasons import Reason
from kube.objects import Namespace, ObjectMeta, PodClaimStatus
from kube.pods.devices import ResourceClaimTemplate
from kube.queues import ClusterQueue, LocalQueue
from queueing.cycle.cycle import cycle
from ungater.model.actions import EmitEvent
from ungater.model.conditions import HOLDING, WantedCondition, merge
from ungater.model.job_view import id_of
from ungater.reconcile import granted
from ungater.reconcile.reconcile import why_not_placed

MAPPED = {"gpu": "gpus", "other-gpu": "gpus", "nic": "nics"}
GPUS = ("gpu", "gpus")
OWN = "example.com/gpu"


HELD = merge((), [WantedCondition(type_, True, Reason.ADMITTED, "") for type_ in HOLDING], generation=1, now=1.0) or ()


def queue_of(amounts):
    resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    group = {"coveredResources": list(amounts), "flavors": [{"name": "gpu", "resources": resources}]}
    policy = {"withinClusterQueue": "LowerPriority"}
    whole = {"resourceGroups": [group], "namespaceSelector": {}, "preemption": policy}
    return read(ClusterQueue, {"metadata": {"name": "cq"}, "spec": whole})


class Charged(Equipped):
    """Eight devices on four hosts, four of them of quota."""

    def __init__(self, amounts=None, mapped=None):
        self.mapped = MAPPED if mapped is None else mapped
        super().__init__()
        self.put("namespace", Namespace(metadata=ObjectMeta(name="ns", labels={"team": "a"})))
        self.put("cluster_queue", queue_of(amounts or {"cpu": 100, "gpus": 4, "nics": 4}))
        local = {"metadata": {"namespace": "ns", "name": "team"}, "spec": {"clusterQueue": "cq"}}
        self.put("local_queue", read(LocalQueue, local))

    def make(self, **options):
        return super().make(device_resources=self.mapped, **options)

    def queued(self, name="train", count=2, **asks):
        labels = {KEYS.queue_name: "team"}
        job = make_job(name, parallelism=count, labels=labels, suspend=True, spec=spec(**{"claims": ONE, **asks}))
        self.put("job", job)
        return job

    def of(self, job):
        return self.memory.entries[id_of(job)]

    def used(self, memory=None, resource="gpus"):
        return (memory or self.memory).queues.quotas.used("cq", ("gpu", resource))

    def hindered(self, job):
        return why_not_placed(self.of(job), self.memory.rules)

    def restart(self, job):
        """Of an admitted job whose conditions are stored by then."""
        self.memory = self.restarted()
        record = self.of(job)
        record.observed = msgspec.structs.replace(record.observed, conditions=HELD)

    def event(self, job):
        return "; ".join(one.message for one in self.look(self.of(job)) if isinstance(one, EmitEvent))

    def set_of(self, name, **asks):
        """A pod of a StatefulSet in the queue, of which nobody else tells."""
        return self.group(name, labels={KEYS.queue_name: "team"}, **asks)


@pytest.fixture
def world():
    return Charged()


def asking(*requests, name="one-gpu"):
    body = {"metadata": {"name": name, **META}, "spec": {"spec": {"devices": {"requests": list(requests)}}}}
    return read(ResourceClaimTemplate, body)


def exactly(name, **fields):
    return {"name": name, "exactly": {"deviceClassName": "gpu", **fields}}


def first_of(*alternatives):
    return {"name": "any", "firstAvailable": [{"name": f"a{n}", **one} for n, one in enumerate(alternatives)]}


def test_what_is_admitted_is_charged_and_the_next_waits_for_the_resource_of_its_class(world):
    jobs = [world.queued(f"job-{number}") for number in range(3)]
    for job in jobs[:2]:
        world.admit(job)
    assert (world.used(), world.used(resource="cpu")) == (4, 4000)
    refusal = world.refused(jobs[2])
    assert refusal.reason is Reason.INSUFFICIENT_QUOTA
    assert refusal.message.startswith("2 gpus of flavor gpu wanted, 2 more than is left: cluster queue cq uses 4 of")
    world.drop("job", jobs[0])
    world.admit(jobs[2])
    assert world.used() == 4


def test_a_restart_charges_the_same_and_holds_the_same(world):
    jobs = [world.queued(f"job-{number}") for number in range(2)]
    for job in jobs:
        world.admit(job)
    (part,) = world.of(jobs[0]).admission.parts
    assert (dict(part.usage), dict(part.flavors)["gpus"]) == ({"pods": 2, "cpu": 2000, "gpus": 2}, "gpu")
    again = world.restarted()
    assert (world.used(again), world.used(again, "cpu")) == (4, 4000)
    for memory in (world.memory, again):
        (held,) = memory.state.assignments(world.of(jobs[0]).key).values()
        assert held.requests == {"cpu": 1000}
        assert memory.entries[id_of(jobs[0])].granted("main") == {"cpu": 1000, "gpus": 1}


def test_a_template_that_asks_for_more_after_a_restart_changes_no_charge_and_lets_nobody_go(world):
    job = world.queued()
    world.admit(job)
    world.put("claim_template", template(2))
    world.restart(job)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": world.of(job).job.uid, "controller": True}
    world.put("job", make_job(parallelism=2, labels={KEYS.queue_name: "team"}, spec=spec(claims=ONE)))
    with_claim(world, a_pod("train-x", owner=owner, claims=ONE), 2)
    assert world.let_go(world.of(job)) == []
    assert "asks for gpus 2, and Job train" in world.event(job)
    assert world.used() == 2
    world.put("claim_template", template(1))
    world.restart(job)
    assert world.let_go(world.of(job)) == [], "its claim asks for two whatever is in the template by now"
    with_claim(world, a_pod("train-x", owner=owner, claims=ONE))
    assert world.let_go(world.of(job)) == ["train-x"]


@pytest.mark.parametrize(
    ("requests", "charge"),
    [
        ([exactly("a", count=3), exactly("b")], {"gpus": 4}),
        ([exactly("a", deviceClassName="other-gpu"), exactly("b", deviceClassName="nic")], {"gpus": 1, "nics": 1}),
        ([exactly("a"), exactly("b", adminAccess=True, allocationMode="All")], {"gpus": 1}),
        ([exactly("a", adminAccess=True, deviceClassName="unknown")], {}),
        ([first_of({"deviceClassName": "gpu", "count": 2}, {"deviceClassName": "other-gpu", "count": 2})], {"gpus": 2}),
        ([exactly("a", count=2**63 - 1)], {"gpus": MOST}),
        ([exactly("a", count=2**63 - 1), exactly("b", count=2**63 - 1)], {"gpus": MOST}),
    ],
)
def test_requests_count_by_their_class(world, requests, charge):
    for name in ("other-gpu", "nic", "unknown"):
        world.put("device_class", a_class(name))
    world.put("claim_template", asking(*requests))
    job = world.queued()
    assert world.hindered(job) is None
    (wish,) = world.memory.pod_sets.wish(world.of(job))
    found = world.memory.device_claims.quota.charged(world.of(job), wish)
    assert (found or {"cpu": 1000}) == {"cpu": 1000, **charge}


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (exactly("a", allocationMode="All"), 'request "a" of claim "gpu" asks for devices by All, and quota counts'),
        (exactly("a", deviceClassName="unknown"), 'asks for DeviceClass "unknown", which no entry of deviceClassMap'),
        (first_of({"deviceClassName": "gpu"}, {"deviceClassName": "nic"}), "alternatives that count differently"),
        (first_of({"deviceClassName": "gpu"}, {"deviceClassName": "gpu", "count": 2}), "alternatives that count diff"),
        (first_of({"deviceClassName": "gpu"}, {"deviceClassName": "unknown"}), 'asks for DeviceClass "unknown"'),
    ],
)
def test_what_quota_cannot_count_waits_in_a_queue_and_only_there(world, request_, why):
    for name in ("other-gpu", "nic", "unknown"):
        world.put("device_class", a_class(name))
    world.put("claim_template", asking(request_))
    reason, text = world.hindered(world.queued())
    assert reason is Reason.RESOURCE_CLAIMS_NOT_COUNTED
    assert why in text
    assert world.why(world.job("alone", claims=ONE)) is None
    fine = world.queued("fine", claims=None)
    assert world.hindered(fine) is None


def test_without_mappings_nobody_with_claims_is_admitted_by_a_queue():
    world = Charged(mapped={})
    assert "which no entry of deviceClassMappings has" in world.hindered(world.queued())[1]
    assert sum(slot.count for slot in world.placed("alone", 2).slots.slots) == 2


def test_a_queue_without_quota_for_the_resource_says_so():
    world = Charged({"cpu": 100})
    refusal = world.refused(world.queued())
    assert (refusal.reason, refusal.message) == (Reason.NO_QUOTA, "cluster queue cq has no quota for gpus")


def test_an_enormous_count_is_one_workloads_reason(world):
    world.put("claim_template", template(2**63 - 1, "enormous"))
    large = world.queued("large", 1000, claims=[{"name": "gpu", "resourceClaimTemplateName": "enormous"}])
    fine = world.queued("fine")
    assert world.refused(large).reason is Reason.EXCEEDS_QUOTA
    world.admit(fine)
    assert world.used() == 2


def test_ten_thousand_templates_are_each_counted(world):
    for number in range(10_000):
        world.put("claim_template", template(1 + number % 3, f"t{number}"))
    claims = [{"name": f"c{number}", "resourceClaimTemplateName": f"t{number}"} for number in range(9_998, 10_000)]
    job = world.queued(count=1, claims=claims)
    (wish,) = world.memory.pod_sets.wish(world.of(job))
    charged = world.memory.device_claims.quota.charged(world.of(job), wish)
    assert charged == {"cpu": 1000, "gpus": sum(1 + number % 3 for number in range(9_998, 10_000))}


def test_a_template_that_is_deleted_in_use_gives_nothing_back(world):
    job = world.queued()
    world.admit(job)
    world.drop("claim_template", template())
    record = world.of(job)
    assert world.used() == 2
    found = world.memory.reservations.workload(record, world.memory.pod_sets.wish(record), 0)
    assert found.charged == {"main": {"cpu": 1000, "gpus": 1}}
    again = world.restarted()
    assert world.used(again) == 2
    record = again.entries[id_of(job)]
    found = again.reservations.workload(record, again.pod_sets.wish(record), 0)
    assert found.charged == {"main": {"cpu": 1000, "gpus": 1}}


def test_a_mapping_that_is_taken_away_leaves_what_is_held(world):
    job = world.queued()
    world.admit(job)
    world.mapped = {}
    again = world.restarted()
    assert world.used(again) == 2
    (held,) = again.state.assignments(again.entries[id_of(job)].key).values()
    assert held.requests == {"cpu": 1000}


# --- extended resources ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [True, False])
def test_an_extended_resource_counts_as_that_of_its_class_and_not_twice(published):
    world = Charged({"cpu": 100, "gpus": 4, OWN: 4})
    world.put("device_class", a_class("gpu", OWN))
    if published:
        for node in world.nodes:
            world.put("node", publishing(node, resource=OWN))
    job = world.queued(count=1, amounts={OWN: "2"})
    (wish,) = world.memory.pod_sets.wish(world.of(job))
    charged = world.memory.device_claims.quota.charged(world.of(job), wish)
    assert charged == {"cpu": 1000, "gpus": 3}
    if published:
        world.admit(job)
        assert (world.used(), world.used(resource=OWN)) == (3, 0)
        again = world.restarted()
        assert (world.used(again), world.used(again, OWN)) == (3, 0)
        for memory in (world.memory, again):
            (held,) = memory.state.assignments(world.of(job).key).values()
            assert held.requests == {"cpu": 1000, OWN: 2}


def test_an_extended_resource_of_a_class_that_is_not_mapped_counts_as_itself():
    world = Charged({"cpu": 100, OWN: 4}, mapped={})
    world.put("device_class", a_class("gpu", OWN))
    for node in world.nodes:
        world.put("node", publishing(node, resource=OWN))
    job = world.queued(count=2, claims=None, amounts={OWN: "1"})
    world.admit(job)
    assert world.used(resource=OWN) == 2


def test_the_resource_of_a_mapping_may_be_the_extended_resource_itself():
    world = Charged({"cpu": 100, OWN: 4}, mapped={"gpu": OWN})
    world.put("device_class", a_class("gpu", OWN))
    for node in world.nodes:
        world.put("node", publishing(node, resource=OWN))
    job = world.queued(count=1, amounts={OWN: "2"})
    world.admit(job)
    assert world.used(resource=OWN) == 3
    again = world.restarted()
    assert world.used(again, OWN) == 3
    for memory in (world.memory, again):
        (held,) = memory.state.assignments(world.of(job).key).values()
        assert held.requests == {"cpu": 1000, OWN: 2}


# --- pods that run -----------------------------------------------------------------------------------------------


def with_claim(world, pod, count=1):
    made = (PodClaimStatus(name="gpu", resource_claim_name=f"{pod.metadata.name}-gpu"),)
    world.put("resource_claim", claim(pod.metadata.name, "", count=count))
    pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=made))
    world.put("pod", pod)
    return pod


def sets(world, count=2):
    """The workload of a StatefulSet's pods, which run by the quota of the queue, each with its claim."""
    for number in range(count):
        record = world.set_of(f"db-{number}", claims=ONE)
        with_claim(world, world.stores["pod"][f"ns/db-{number}"])
        world.settle()
        assert world.let_go(record) == [f"db-{number}"]
        pod = world.stores["pod"][f"ns/db-{number}"]
        said = encode(AdmittedQuota("cq", {"cpu": "gpu", "gpus": "gpu"}))
        meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, ADMITTED_QUOTA: said})
        world.put("pod", msgspec.structs.replace(pod, metadata=meta))
    return record


def test_a_pod_goes_once_its_claims_are_made_where_a_queue_pays(world):
    record = world.set_of("db-0", claims=ONE)
    assert world.let_go(record) == []
    world.asked.clear()
    with_claim(world, world.stores["pod"]["ns/db-0"])
    assert world.asked == [record.id]
    assert world.let_go(record) == ["db-0"]


def test_pods_that_come_one_by_one_are_charged_with_their_devices(world):
    record = sets(world)
    assert (record.admission.count, world.used(), world.used(resource="cpu")) == (2, 2, 2000)
    assert world.used(world.restarted()) == 2


def test_pods_that_outlive_their_workload_are_charged_with_their_devices(world):
    record = sets(world)
    for pod in tuple(world.stores["pod"].values()):
        meta = msgspec.structs.replace(pod.metadata, owner_references=())
        world.put("pod", msgspec.structs.replace(pod, metadata=meta))
    world.memory.admissions.release_job(record)
    assert (world.used(), world.used(resource="cpu")) == (2, 2000)
    world.drop("workload", world.stores["workload"][record.key])
    world.drop("claim_template", template())
    again = world.restarted()
    assert (world.used(again), world.used(again, "cpu")) == (2, 2000)
    world.drop("pod", world.stores["pod"]["ns/db-0"])
    assert world.used() == 1


def test_a_workload_that_was_deleted_unseen_is_charged_anew_by_its_pods(world):
    record = sets(world)
    world.drop("workload", world.stores["workload"][record.key])
    again = world.restarted()
    held = again.entries[record.id]
    assert held.admission is not None
    assert (world.used(again), world.used(again, "cpu")) == (2, 2000)
    assert held.granted("main") == {"cpu": 1000, "gpus": 1}
    (part,) = again.state.assignments(held.key).values()
    assert part.requests == {"cpu": 1000}


def test_where_pods_come_whose_claims_ask_for_more_none_goes_and_none_is_charged(world):
    record = sets(world, 1)
    world.put("claim_template", template(2))
    record = world.set_of("db-1", claims=ONE)
    assert world.let_go(record) == []
    assert world.used() == 2, "for the pod that was to come, as it was admitted"


def test_what_is_not_known_of_pods_gives_no_quota_back(world):
    record = sets(world, 2)
    world.drop("claim_template", template())
    (pod_set,) = record.job.pod_sets
    assert granted.less(record, pod_set, world.memory.rules) is None
    world.drop("resource_claim", claim("db-0", ""))
    assert granted.less(record, pod_set, world.memory.rules) is None


def test_more_important_jobs_evict_for_device_quota(world):
    low = world.queued("low", 4)
    world.admit(low)
    high = world.queued("high", 2)
    record = world.of(high)
    record.observed = msgspec.structs.replace(make_known(record.job), priority=5)
    world.memory.admissions.enqueue_entry(record)
    (plan,) = cycle(world.memory.state, world.memory.queues, 1.0).preempting
    assert [victim.key for victim in plan.victims] == [world.of(low).key]
    world.memory.admissions.release_job(world.of(low))
    assert [one.key for one in cycle(world.memory.state, world.memory.queues, 2.0).admitted] == [record.key]
    assert world.used() == 2


def test_claims_that_pods_name_are_not_counted(world):
    both = [*ONE, {"name": "mine", "resourceClaimName": "shared"}]
    pod = a_pod(claims=both)
    why = world.memory.device_claims.quota.explain_unknown("ns", pod.spec)
    assert why == "quota counts no ResourceClaims that pods name, only those made of templates"
    assert world.memory.device_claims.quota.quota_of_pod(pod) == {"cpu": 1000, "gpus": 1}
    assert world.hindered(world.queued("named", claims=both))[0] is Reason.RESOURCE_CLAIMS_NOT_COUNTED
