"""Jobs that name PodGroups of Kubernetes itself, as these come, change and go."""

import msgspec
import pytest
from support.owned import KEYS, make_job, make_pod
from support.world import FLAVOR, NODES, World

from engine.reasons import Reason
from kube.objects import ObjectMeta, PodGroup, PriorityClass
from ungater.cache.owners import MOST_IN_GROUP as MOST
from ungater.model.job_view import id_of
from ungater.reconcile.moves import as_one, movable
from ungater.reconcile.reconcile import why_not_placed

IN_GROUP = {"schedulingGroup": {"podGroupName": "ring"}}
UNCONSTRAINED = {KEYS.unconstrained: "true"}
RACK = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}


def group(name="ring", least=0, **said):
    policy = {"gang": {"minCount": least}} if least else {"basic": {}}
    body = {"metadata": {"name": name, "namespace": "ns"}, "spec": {"schedulingPolicy": policy, **said}}
    return msgspec.json.decode(msgspec.json.encode(body), type=PodGroup)


class Grouped(World):
    def __init__(self):
        super().__init__()
        self.reads_groups = True
        for node in NODES:
            self.put("node", node)
        self.put("flavor", FLAVOR)

    def job(self, name="train", parallelism=2, request=UNCONSTRAINED, spec=IN_GROUP, **more):
        made = make_job(name, parallelism=parallelism, request=request, spec=spec, **more)
        self.put("job", made)
        return made

    def of(self, job):
        return self.memory.entries[id_of(job)]

    def why(self, job):
        return why_not_placed(self.of(job), self.memory.rules)


@pytest.fixture
def world():
    return Grouped()


def test_a_job_waits_for_its_group_and_is_looked_at_when_it_comes(world):
    job = world.job()
    assert world.why(job)[0] is Reason.PENDING
    world.asked.clear()
    world.put("native_group", group(**RACK))
    assert world.why(job) is None
    assert world.of(job).job.pod_sets[0].request.level == "rack"
    assert id_of(job) in world.asked
    slots = world.admit(job)
    assert len({slot.values[1] for slot in slots.slots}) == 1, "in one rack"


def test_a_level_that_no_flavor_has_is_told_with_its_field(world):
    world.put("native_group", group(schedulingConstraints={"topology": [{"key": "made.up/level"}]}))
    reason, told = world.why(world.job())
    assert reason is Reason.UNKNOWN_LEVEL
    assert told.startswith('PodGroup ring: spec.schedulingConstraints.topology[0].key: Unsupported value: "made.up/')


@pytest.mark.parametrize("least", [3, 2**31 - 1])
def test_who_runs_goes_on_whatever_becomes_of_its_group(world, least):
    world.put("native_group", group(least=2, **RACK))
    job = world.job()
    slots = world.admit(job)
    world.put("native_group", group(least=least, **RACK))
    assert world.of(job).slots is slots
    assert world.of(job).job.held_off.reason is Reason.CONTRADICTING_REQUESTS
    world.drop("native_group", group())
    assert world.of(job).job.wrong is None
    assert world.of(job).slots is slots
    again = world.restarted().entries[id_of(job)]
    assert (again.admission is not None, again.job.held_off.reason) == (True, Reason.PENDING)


def test_a_change_of_its_status_alone_costs_nothing(world):
    world.put("native_group", group())
    world.job()
    world.asked.clear()
    world.put("native_group", group())
    assert not world.asked


def test_two_that_both_wait_in_one_group_are_both_told(world):
    world.put("native_group", group())
    one = world.job("one")
    world.asked.clear()
    other = world.job("other")
    assert id_of(one) in world.asked
    for job, named in ((one, "other"), (other, "one")):
        reason, told = world.why(job)
        assert reason is Reason.INVALID_REQUEST
        assert f"PodGroup ring is also that of Job {named}," in told
    world.asked.clear()
    world.drop("job", other)
    assert world.why(one) is None
    assert id_of(one) in world.asked


def test_one_that_has_its_place_hinders_no_other(world):
    world.put("native_group", group())
    one = world.job("one")
    world.admit(one)
    assert world.why(world.job("other")) is None


def test_a_group_of_too_many_workloads_costs_no_more_than_some(world):
    world.put("native_group", group())
    jobs = [world.job(f"job-{at}") for at in range(MOST + 2)]
    assert len(world.memory.named_groups.naming("ns/ring")) == MOST
    assert f"more than {MOST} workloads" in world.why(jobs[-1])[1]
    world.asked.clear()
    world.drop("job", jobs[0])
    assert id_of(jobs[MOST]) in world.asked  # the next of those that were too many
    assert f"more than {MOST} workloads" not in world.why(jobs[MOST])[1]
    for job in jobs[1:]:
        world.drop("job", job)
    assert not world.memory.named_groups.naming("ns/ring")
    assert world.why(world.job()) is None


def test_where_groups_are_not_served_nothing_changes(world):
    world.reads_groups = False
    job = world.job()
    assert world.why(job) is None
    assert world.of(job).job is not None
    assert world.of(job).job.held_off is None


def test_one_whose_pods_go_together_is_moved_as_one(world):
    world.put("native_group", group(disruptionMode={"single": {}}))
    job = world.job()
    assert movable(world.of(job))
    assert not as_one(world.of(job))
    world.put("native_group", group(disruptionMode={"all": {}}))
    assert movable(world.of(job))
    assert as_one(world.of(job))


def test_pods_of_a_group_do_not_share_a_claim_without_devices(world):
    world.put("native_group", group())
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    alone, grouped = world.job("alone", spec=claims), world.job("grouped", spec={**claims, **IN_GROUP})
    named = world.memory.device_claims.named
    named._known = lambda _: type("Known", (), {"users": frozenset(), "allocated": False})()
    spec = world.of(grouped).job.pod_sets[0].template.spec
    assert "lets the pods of their PodGroup go all at once" in named.claim_hindrance(world.of(grouped), spec)
    assert "PodGroup" not in (
        named.claim_hindrance(world.of(alone), world.of(alone).job.pod_sets[0].template.spec) or ""
    )


def test_a_job_whose_view_fails_costs_no_other_job_of_its_group_the_news(world, monkeypatch):
    world.put("native_group", group())
    jobs = [world.job(name) for name in ("a", "b", "c")]
    views, renewed = world.memory.views, []
    renew = views.renew

    def poisoned(entry, own):
        if entry.job.name == "a":
            raise OverflowError("nobody foresaw this")
        renewed.append(entry.job.name)
        renew(entry, own)

    monkeypatch.setattr(views, "renew", poisoned)
    world.put("native_group", group(**RACK))
    assert renewed == ["b", "c"]
    assert world.of(jobs[2]).job.pod_sets[0].request.level == "rack"


@pytest.mark.parametrize("way", ["gone", "ended"])
def test_the_end_of_a_pod_of_the_group_has_those_looked_at_that_name_it(world, way):
    """It may be nobody's pod by then: kube-scheduler still counts it as long as it has a node."""
    world.put("native_group", group())
    job = world.job()
    old = make_pod("old", node=NODES[0].metadata.name, gated=False, phase="Running", spec=IN_GROUP, terminating=True)
    world.put("pod", old)
    world.asked.clear()
    if way == "gone":
        world.drop("pod", old)
    else:
        world.put("pod", msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, phase="Failed")))
    assert id_of(job) in world.asked


def of_value(value):
    return PriorityClass(metadata=ObjectMeta(name="high"), value=value)


def test_a_job_waits_while_its_group_has_another_priority_in_1_37_and_holds_nothing(world):
    world.put("native_group", group())
    world.put("class", of_value(1000))
    job = world.job(spec={**IN_GROUP, "priorityClassName": "high"})
    reason, told = world.why(job)
    assert reason is Reason.CONTRADICTING_REQUESTS
    assert told.startswith("PodGroup ring: spec.priority: 0: the pods of pod set main have priority 1000")
    world.asked.clear()
    world.put("native_group", group(priority=1000))
    assert world.why(job) is None
    assert id_of(job) in world.asked


def test_a_class_that_comes_later_counts_for_a_job_that_waits_in_a_group(world):
    world.put("native_group", group(priority=1000))
    job = world.job(spec={**IN_GROUP, "priorityClassName": "high"})
    assert world.why(job)[0] is Reason.CONTRADICTING_REQUESTS
    world.asked.clear()
    world.put("class", of_value(1000))
    assert world.why(job) is None
    assert id_of(job) in world.asked
