"""What queues and cohorts used over time of what is not their own is in their status, and a new controller goes on."""

import msgspec
import pytest
from support.queued_world import filled, read
from support.used_over_time import UsedWorld

from kube.queues import Cohort
from kube.resources import COHORTS
from queueing.model import Rules, UseRules
from ungater.status.queues import REFRESH, Source, changes

KINDS = ("cohort", "cluster_queue")
USE = "admissionFairSharingStatus"


def cohort(name, cpus=0, parent="", *, scope=True):
    """A Cohort of this many CPUs, that goes by use."""
    quota = {"name": "gpu", "resources": [{"name": "cpu", "nominalQuota": cpus}]}
    spec = {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}]}
    spec |= {"parentName": parent} if parent else {}
    spec |= {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}} if scope else {}
    return read({"metadata": {"name": name, "uid": name}, "spec": spec}, Cohort)


class Scoped(UsedWorld):
    """A queue that owns no CPU, in cohort team, in cohort org, which has four; both go by use."""

    def __init__(self, *, fair=False):
        super().__init__(Rules(fair=fair, use=UseRules(half_life=600.0)))

    def written(self):
        """What would be written now, by name; it is there afterwards."""
        stores = [self.stores[kind] for kind in KINDS]
        source = Source(self.memory.queues, lambda: ("gpu",), *(store.values for store in stores), lambda: (), set)
        patches = list(changes(source, self.clock.at))
        for patch in patches:
            kind = "cohort" if patch.resource is COHORTS else "cluster_queue"
            before = patch.queue.status or {}
            status = {**before, **patch.status}
            if isinstance(found := patch.status.get("fairSharing"), dict):
                there = before.get("fairSharing")
                merged = {**(there if isinstance(there, dict) else {}), **found}
                status["fairSharing"] = {name: one for name, one in merged.items() if one is not None}
            self.put(kind, msgspec.structs.replace(patch.queue, status=status))
        return {patch.queue.metadata.name: patch.status for patch in patches}

    def used(self, memory=None):
        """By queue and cohort, what it consumed, and its share over time."""
        queues = (memory or self.memory).queues
        queues.pass_time(self.clock.at)
        over_time, tree = queues.quotas.over_time, queues.quotas.tree
        nodes = tree.queues["cq"], tree.cohorts["team"], tree.cohorts["org"]
        return {node.name: (over_time.consumed_by(node).get("cpu", 0.0), over_time.score_of(node)) for node in nodes}


def scoped(**options):
    world = Scoped(**options)
    world.put("cohort", cohort("org", 4))
    world.put("cohort", cohort("team", 0, "org"))
    return filled(world, 0, cohortName="team")


def test_a_controller_that_starts_goes_on_where_the_last_one_stood():
    world = scoped()
    early = world.run("early")
    world.clock.at += 600.0
    world.written()
    world.clock.at += 100.0
    world.run("late", 1)
    world.clock.at += 2.0
    assert {USE} == set(world.written()["team"]["fairSharing"])
    world.clock.at += 500.0
    before, after = world.used(), world.used(world.restarted())
    assert before["cq"][0] > 1500, "of 3,000 that are held"
    assert before["team"] == before["cq"], "all that team uses is of org"
    assert before["org"] == (0.0, (False, 0.0)), "the root borrows of nobody"
    for name in ("cq", "team"):
        assert after[name][0] == pytest.approx(before[name][0], rel=1e-8)
        assert after[name][1] == pytest.approx(before[name][1], rel=1e-8)
    world.drop("job", early)
    world.clock.at += 600.0
    assert world.used()["cq"][0] == pytest.approx(1000 + (before["cq"][0] - 1000) / 2)


def test_without_a_status_what_runs_counts_from_when_it_was_admitted():
    world = scoped()
    world.run("train")
    world.clock.at += 600.0
    assert world.used(world.restarted())["team"][0] == pytest.approx(1000.0), "half of what it holds"


@pytest.mark.parametrize("found", ["x", [], {USE: []}, {USE: {"consumedResources": {"cpu": "-9"}, "lastUpdate": "x"}}])
def test_a_status_that_nobody_can_read_stops_nothing_and_says_nothing(found):
    world = scoped()
    for kind in KINDS:
        for one in list(world.stores[kind].values()):
            world.put(kind, msgspec.structs.replace(one, status={"fairSharing": found}))
    assert world.used(world.restarted())["cq"] == (0.0, (False, 0.0))
    world.run("train")
    assert set(world.written()) >= {"cq", "team"}


def test_a_status_with_giant_numbers_is_bounded_and_falls_from_now_on():
    world = scoped()
    (queue,) = world.stores["cluster_queue"].values()
    found = {"consumedResources": {"cpu": "9e999", "x/y": "-5"}, "lastUpdate": "9999-01-01T00:00:00Z"}
    world.put("cluster_queue", msgspec.structs.replace(queue, status={"fairSharing": {USE: found}}))
    assert world.used()["cq"][0] == 0.0, "while a controller runs the status is what it wrote itself"
    memory = world.restarted()
    assert world.used(memory)["cq"][0] == pytest.approx(float(2**63))
    world.clock.at += 600.0
    assert world.used(memory)["cq"][0] == pytest.approx(float(2**62))


@pytest.mark.parametrize("fair", [True, False])
def test_use_is_written_beside_other_numbers_and_else_only_when_it_is_old_and_far_off(fair):
    world = scoped(fair=fair)
    world.written()
    assert world.written() == {}
    job = world.run("train")
    first = world.written()
    share = {"weightedShare"} if fair else set()
    assert {name: set(one["fairSharing"]) for name, one in first.items() if name != "org"} == {
        "cq": {USE} | share,
        "team": {USE} | share,
    }
    assert "fairSharing" not in first["org"], "nobody's child"
    world.clock.at += REFRESH - 1.0
    assert world.written() == {}
    world.clock.at += 1.0
    assert {name: [*one] for name, one in world.written().items()} == {"cq": ["fairSharing"], "team": ["fairSharing"]}
    world.drop("job", job)
    world.written()
    for _ in range(60):
        world.clock.at += 600.0
        world.written()
    assert world.written() == {}, "what decayed to nothing is not written for ever"


def test_without_a_scope_use_goes_from_the_status_and_the_present_share_stays():
    world = scoped(fair=True)
    world.run("train")
    world.clock.at += 100.0
    world.written()
    for name in ("org", "team"):
        parent = {"org": "", "team": "org"}[name]
        stored = world.stores["cohort"][name]
        spec = cohort(name, 4 if name == "org" else 0, parent, scope=False).spec
        world.put("cohort", msgspec.structs.replace(stored, spec=spec))
    patch = world.written()
    assert [patch[name]["fairSharing"] for name in ("cq", "team")] == [{USE: None}, {USE: None}]
    status = world.stores["cohort"]["team"].status
    assert status["fairSharing"] == {"weightedShare": 500}, "2 of the 4 that org has"
    assert world.written() == {}
