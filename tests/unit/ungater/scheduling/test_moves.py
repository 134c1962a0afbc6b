"""Who is moved, who is not, and what a budget that refuses after all brings back. Attacks included."""

import msgspec
import pytest
from support.owned import KEYS, make_job, make_known, make_owner, make_pod
from support.queued_world import filled
from support.world import World, make_node

from clock import SYSTEM
from crds.settings import Settings
from engine.reasons import Reason
from kube.events import EventRecorder
from kube.objects import Condition
from queueing.cycle.cycle import cycle
from queueing.moves import MoveRules
from ungater.cache.pod_groups import BARE
from ungater.cache.rules import move_rules
from ungater.metrics import ControllerMetrics
from ungater.model import actions as i
from ungater.model.conditions import EVICTED, MOVE_REFUSED, MOVING, QUOTA_RESERVED, timestamp
from ungater.model.job_view import id_of
from ungater.model.move_request import MoveRequest, encode
from ungater.model.workload_entry import PlacementMismatch
from ungater.reconcile import missing_pods
from ungater.reconcile.reconcile import reconcile
from ungater.scheduling import moves as moving
from ungater.scheduling import relocation
from ungater.scheduling.moves import Moves

PREFERRED = {KEYS.preferred[0]: "rack"}
REQUIRED = {KEYS.required[0]: "rack"}
HOUR = 3600.0
ALLOWED = MoveRules(per_hour=5, rest=600.0)
NOW = 1_800_000_000.0
LONG_AGO = "2026-11-20T00:00:00Z"


class Clock:
    def __init__(self):
        self.time = NOW

    def now(self):
        return self.time

    def monotonic(self):
        return self.time


class Silent(EventRecorder):
    def __init__(self):
        self.told = []

    def event(self, regarding, type_, reason, action, note):
        self.told.append((regarding.name, str(reason), note))


class Moving:
    """Four hosts of two CPUs in two racks; what is replaced is held and stored at once, as the scheduler does it."""

    def __init__(self, rules=ALLOWED):
        self.world = filled(World())
        self.clock = Clock()
        self.recorder = Silent()
        self.begun = []
        self.moves = self.made(rules)

    def made(self, rules=ALLOWED):
        parts = {"metrics": ControllerMetrics(), "recorder": self.recorder, "clock": self.clock}
        return Moves(self.world.memory, rules, self.replace, self.say, **parts)

    def say(self, entry, wanted):
        said = [
            Condition(type=one.type, status=str(bool(one.status)), reason=str(one.reason), message=one.message)
            for one in wanted
        ]
        types = {one.type for one in wanted}
        kept = [one for one in entry.observed.conditions if one.type not in types]
        entry.observe(_with(entry.observed, (*kept, *said)))

    def replace(self, entry, grant, news):
        memory = self.world.memory
        memory.reservations.replace(entry, grant)
        admission = memory.reservations.admission_of(entry, grant)
        memory.admissions.store_admission(entry, admission, grant)
        memory.admissions.replaced(entry)
        said = tuple(
            Condition(
                type=one.type,
                status="True" if one.status else "False",
                reason=str(one.reason),
                message=one.message,
                last_transition_time=timestamp(self.clock.time),
            )
            for one in news.conditions
        )
        kept = [one for one in entry.observed.conditions if one.type != MOVING]
        entry.observe(_with(entry.observed, (*kept, *said)))
        self.begun.append(entry.key)
        news.stored()

    def look(self, after=moving.LOOK):
        self.clock.time += after
        self.moves.start_moves()

    def job(self, name="train", pods=4, request=PREFERRED, conditions=(), pod=None, **more):
        """A job that runs where a cycle put it, all pods ready, and was admitted long ago."""
        job = make_job(name, parallelism=pods, request=request, status={"ready": pods, "active": pods}, **more)
        self.world.put("job", job)
        slots = self.world.admit(job)
        self.world.memory.queues.fresh.clear()
        entry = self.world.memory.entries[id_of(job)]
        for slot in slots.slots:
            for number in range(slot.count):
                spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], **(pod or {})}
                made = make_pod(
                    f"{name}-{slot.node}-{number}",
                    owner=entry.job,
                    at=slot.values,
                    node=slot.node,
                    phase="Running",
                    spec=spec,
                )
                self.world.put("pod", made)
        held = Condition(
            type=QUOTA_RESERVED, status="True", reason="Admitted", message="m", last_transition_time=LONG_AGO
        )
        entry.observe(_with(entry.observed, (held, *conditions)))
        return entry

    def spread(self, **more):
        """A job of four pods, two in each rack, beside two that go: then both racks have room for all of it."""
        first, second = (self.filler(name, node) for name, node in (("one", "r1-h1"), ("two", "r2-h1")))
        entry = self.job(**more)
        assert racks(entry) == {"r1", "r2"}
        self.gone(second)
        return entry, first

    def filler(self, name, node):
        return self.job(name, 2, spec={"nodeSelector": {"kubernetes.io/hostname": node}})

    def gone(self, entry):
        for pod in list(entry.pods.values()):
            self.world.drop("pod", pod)
        self.world.drop("job", self.world.stores["job"][f"ns/{entry.job.name}"])


def _with(observed, conditions):
    return msgspec.structs.replace(observed, conditions=tuple(conditions))


def racks(entry):
    return {slot.values[1] for slot in entry.slots.slots}


@pytest.fixture
def cluster():
    return Moving()


def test_one_that_prefers_a_rack_comes_together_and_nobody_else_is_touched(cluster):
    entry, other = cluster.spread()
    before = other.admission
    cluster.look()
    assert cluster.begun == [entry.key]
    assert racks(entry) == {"r2"}
    assert other.admission is before
    (said,) = [one for one in entry.observed.conditions if one.type == MOVING]
    assert (said.status, said.reason) == ("True", "PullTogether")
    assert {name for name, reason, _ in cluster.recorder.told if reason == "PullTogether"} >= {"train"}
    free = cluster.world.memory.state.free_on_node("r1-h2")
    assert free["cpu"] == 0, "its pods are still there"


def test_only_one_look_in_a_while_and_one_move_of_one(cluster):
    entry, _ = cluster.spread()
    cluster.look()
    for _ in range(5):
        cluster.look()
    assert cluster.begun == [entry.key]


def test_nothing_where_nobody_allows_it():
    for rules in (MoveRules(), MoveRules(per_hour=5, rest=600.0, together=False)):
        cluster = Moving(rules)
        cluster.spread()
        cluster.look()
        assert cluster.begun == []


@pytest.mark.parametrize("policy", [0, 1])
def test_only_who_prefers_a_level(policy):
    cluster = Moving()
    request = [{KEYS.unconstrained: "true"}, {KEYS.required[0]: "block"}][policy]
    cluster.spread(request=request)
    cluster.look()
    assert cluster.begun == []


def test_one_that_started_a_moment_ago_stays(cluster):
    entry, _ = cluster.spread()
    fresh = Condition(
        type=QUOTA_RESERVED,
        status="True",
        reason="Admitted",
        message="m",
        last_transition_time="2027-01-15T07:59:00Z",
    )
    entry.observe(_with(entry.observed, (fresh,)))
    cluster.look()
    assert cluster.begun == []
    cluster.look(ALLOWED.rest)
    assert cluster.begun == [entry.key]


def test_one_whose_pods_may_take_a_day_to_stop_would_have_two_places_for_so_long(cluster):
    cluster.spread(pod={"terminationGracePeriodSeconds": 86_400})
    cluster.look()
    assert cluster.begun == []


def test_one_that_says_it_is_not_safe_to_evict_stays(cluster):
    entry, _ = cluster.spread()
    for pod in list(entry.pods.values()):
        notes = {**pod.metadata.annotations, "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
        meta = msgspec.structs.replace(pod.metadata, annotations=notes)
        cluster.world.put("pod", msgspec.structs.replace(pod, metadata=meta))
    cluster.look()
    assert cluster.begun == []


def test_one_that_nobody_makes_anew_stays(cluster):
    entry, _ = cluster.spread()
    for pod in list(entry.pods.values()):
        alone = tuple(msgspec.structs.replace(one, kind="Thing") for one in pod.metadata.owner_references)
        entry.pods[pod.metadata.uid] = msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=alone)
        )
    cluster.look()
    assert cluster.begun == []


@pytest.mark.parametrize(
    ("kind", "api", "moved"),
    [
        ("Job", "batch.volcano.sh/v1alpha1", False),
        ("StatefulSet", "apps.kruise.io/v1beta1", False),
        ("ReplicaSet", "apps/v1", False),
        ("StatefulSet", "apps/v1", True),
    ],
)
def test_only_controllers_that_are_known_make_pods_anew_whatever_others_are_called(cluster, kind, api, moved):
    entry, _ = cluster.spread()
    for pod in list(entry.pods.values()):
        refs = tuple(msgspec.structs.replace(one, kind=kind, api_version=api) for one in pod.metadata.owner_references)
        meta = msgspec.structs.replace(pod.metadata, owner_references=refs)
        entry.pods[pod.metadata.uid] = msgspec.structs.replace(pod, metadata=meta)
    why = relocation.unmovable(cluster.world.memory, entry)
    assert ("nobody would create pod" in why, not why) == (not moved, moved), "a plan leaves it out"
    cluster.look()
    assert bool(cluster.begun) is moved


def test_owners_stay_that_make_more_pods_meanwhile(cluster):
    entry, _ = cluster.spread()
    entry.set_view(entry.job, msgspec.structs.replace(entry.job, open_ended=True))
    assert "in a way that allows no move" in relocation.unmovable(cluster.world.memory, entry)
    cluster.look()
    assert cluster.begun == []
    ask(cluster, entry, ["r2-h1"])
    cluster.look()
    assert cluster.begun == []


def test_a_budget_counts_for_the_pods_that_would_go(cluster):
    entry, _ = cluster.spread()
    budgets = cluster.world.memory.queues.budgets
    budgets.set_selected(entry.key, {"ns/keep": 4})
    budgets.allow("ns/keep", 1)
    cluster.look()
    assert cluster.begun == []
    budgets.allow("ns/keep", 2)
    cluster.look(moving.FORBIDDEN)
    assert cluster.begun == [entry.key], "two of the four go"


def test_one_whose_pods_are_not_all_ready_stays(cluster):
    entry, _ = cluster.spread()
    job = cluster.world.stores["job"]["ns/train"]
    cluster.world.put("job", msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, ready=3)))
    cluster.look()
    assert cluster.begun == []
    assert entry.job.ready == 3


def test_one_that_is_on_its_way_out_stays(cluster):
    leaving = Condition(type=EVICTED, status="True", reason="Preempted", message="m", last_transition_time=LONG_AGO)
    cluster.spread(conditions=(leaving,))
    cluster.look()
    assert cluster.begun == []


def test_one_that_holds_nothing_is_passed_over_without_an_error(cluster):
    entry, _ = cluster.spread()
    cluster.world.memory.admissions.release_job(entry)
    cluster.moves._wants = lambda *_: True
    failed = []
    cluster.world.memory.guard.failed = lambda *what: failed.append(what)
    cluster.look()
    assert (cluster.begun, failed) == ([], [])


def test_who_is_nobodys_victim_is_not_moved(cluster):
    entry, _ = cluster.spread()
    cluster.world.memory.queues.holders.non_preemptible[entry.key] = None
    cluster.look()
    assert cluster.begun == []


def test_what_another_process_moved_counts(cluster):
    entry, _ = cluster.spread()
    said = Condition(
        type=MOVING, status="False", reason="Moved", message="m", last_transition_time="2027-01-15T07:50:00Z"
    )
    entry.observe(_with(entry.observed, (*entry.observed.conditions, said)))
    cluster.moves = cluster.made(MoveRules(per_hour=1, rest=1.0))
    cluster.look()
    assert cluster.begun == [], "the one of this hour was used before this process began"
    cluster.moves = cluster.made(MoveRules(per_hour=4, rest=1.0))
    cluster.look()
    assert cluster.begun == [entry.key]


def test_pods_that_do_not_go_get_their_places_back(cluster):
    entry, _ = cluster.spread()
    before = {slot.values: slot.count for slot in entry.slots.slots}
    cluster.look()
    (old,) = before.keys() - {slot.values for slot in entry.slots.slots}
    pods = [pod for pod in entry.pods.values() if entry.slots.of_selector(pod.spec.node_selector) is None]
    assert len(pods) == 2
    gone, stays = pods
    cluster.world.drop("pod", gone)
    cluster.moves.put_back(entry, [stays], "a budget refuses")
    now = {slot.values: slot.count for slot in entry.slots.slots}
    assert (now[old], entry.slots.total) == (1, 4)
    assert entry.slots.of_selector(stays.spec.node_selector) is not None
    used = dict.fromkeys(now, 0)
    for pod in entry.pods.values():
        used[entry.slots.slots[entry.slots.of_selector(pod.spec.node_selector)].values] += 1
    assert all(used[values] <= count for values, count in now.items()), "no slot with two pods"
    assert cluster.world.memory.state.free_on_node(old[-1])["cpu"] == 1000, "it is charged there once"
    (said,) = [one for one in entry.observed.conditions if one.type == MOVING]
    assert (said.status, said.reason) == ("False", str(Reason.EVICTION_BLOCKED))
    again = list(cluster.begun)
    cluster.look(ALLOWED.rest / 2)
    assert cluster.begun == again, "it was refused, and is left alone"


def away(entry):
    return [pod for pod in entry.pods.values() if entry.slots.of_selector(pod.spec.node_selector) is None]


def test_a_gang_that_requires_a_rack_is_never_left_in_two(cluster):
    entry = cluster.job(pods=4, request={KEYS.required[0]: "rack"})
    (rack,) = racks(entry)
    ask(cluster, entry, ["r2-h1", "r2-h2"] if rack == "r1" else ["r1-h1", "r1-h2"])
    cluster.look()
    assert cluster.begun == [entry.key]
    moved = entry.admission
    gone, *stay = away(entry)
    successor = make_pod("new", owner=entry.job, at=entry.slots.slots[0].values, node=entry.slots.slots[0].node)
    cluster.world.drop("pod", gone)
    cluster.world.put("pod", successor)
    assert not cluster.moves.put_back(entry, stay, "a budget refuses")
    assert entry.admission is moved
    assert said(entry).status == "True", "it is asked on and on"
    cluster.world.drop("pod", successor)
    assert not cluster.moves.put_back(entry, stay, "a budget refuses"), "the one that is to come would be in the other"


def test_one_that_nobody_left_gets_all_its_places_back_and_the_request_is_told(cluster):
    entry = cluster.job(pods=4, request={KEYS.required[0]: "rack"})
    before = [(slot.values, slot.count) for slot in entry.slots.slots]
    (rack,) = racks(entry)
    ask(cluster, entry, ["r2-h1", "r2-h2"] if rack == "r1" else ["r1-h1", "r1-h2"])
    cluster.look()
    cluster.moves = cluster.made()
    assert cluster.moves.put_back(entry, away(entry), "a budget refuses")
    assert [(slot.values, slot.count) for slot in entry.slots.slots] == before
    assert (said(entry).status, said(entry).reason) == ("False", "EvictionBlocked")
    assert "(request r-1)" in said(entry).message
    cluster.look()
    assert cluster.begun == [entry.key] * 2, "moved and put back: the same request begins nothing any more"


def test_after_a_restart_it_is_put_back_only_where_it_is_spread_no_wider(cluster):
    entry, _ = cluster.spread()
    cluster.look()
    cluster.moves = cluster.made()
    assert not cluster.moves.put_back(entry, away(entry), "a budget refuses")
    assert said(entry).status == "True"


def held_once(cluster, entry):
    """It has as many places as pods, each pod is in one of its own, and the cluster is charged for no more."""
    used = {slot.values: 0 for slot in entry.slots.slots}
    for pod in entry.pods.values():
        used[entry.slots.slots[entry.slots.of_selector(pod.spec.node_selector)].values] += 1
    assert all(used[slot.values] <= slot.count for slot in entry.slots.slots)
    return charged(cluster)


def charged(cluster):
    nodes = [f"{rack}-{host}" for rack in ("r1", "r2") for host in ("h1", "h2")]
    return 8 - sum(cluster.world.memory.state.free_on_node(node)["cpu"] // 1000 for node in nodes)


def test_after_a_restart_a_move_that_nothing_came_of_is_given_up_too(cluster):
    entry, other = cluster.spread()
    cluster.gone(other)
    before = [(slot.values, slot.count) for slot in entry.slots.slots]
    cluster.look()
    assert charged(cluster) == 6, "two of the four pods have two places"
    cluster.clock.time += moving.GIVEN_UP - 1.0
    cluster.moves = cluster.made()
    assert not cluster.moves.put_back(entry, away(entry), "a budget refuses")
    cluster.clock.time += 1.0
    assert cluster.moves.put_back(entry, away(entry), "a budget refuses"), (
        "as its Workload tells since when it is moved"
    )
    assert [(slot.values, slot.count) for slot in entry.slots.slots] == before
    assert held_once(cluster, entry) == 4
    assert (said(entry).status, said(entry).reason) == ("False", "EvictionBlocked")
    begun = list(cluster.begun)
    cluster.look(ALLOWED.rest - 1.0)
    assert cluster.begun == begun, "it rests from then on"
    cluster.look()
    assert len(cluster.begun) == len(begun) + 1


def test_a_gang_that_a_budget_keeps_half_way_holds_places_for_two_no_longer_than_ten_minutes(cluster):
    entry = cluster.job(pods=4, request={KEYS.required[0]: "rack"})
    (rack,) = racks(entry)
    ask(cluster, entry, ["r2-h1", "r2-h2"] if rack == "r1" else ["r1-h1", "r1-h2"])
    cluster.look()
    gone, *stay = away(entry)
    cluster.world.drop("pod", gone)
    slot = entry.slots.slots[0]
    cluster.world.put(
        "pod", make_pod("new", owner=entry.job, at=slot.values, node=slot.node, phase="Running", spec=CONTAINERS)
    )
    cluster.clock.time += moving.GIVEN_UP - 1.0
    assert not cluster.moves.put_back(entry, stay, "a budget refuses")
    cluster.clock.time += 1.0
    assert cluster.moves.put_back(entry, stay, "a budget refuses")
    assert entry.slots.total == 4
    assert held_once(cluster, entry) == 4
    assert said(entry).reason == "EvictionBlocked"
    assert of((i.EvictMoved, i.Delete), reconcile(entry, cluster.world.memory.rules, 0.0, NOW)) == []


def test_where_successors_never_are_ready_those_that_are_left_stay_after_ten_minutes(cluster):
    entry, other = cluster.spread()
    cluster.gone(other)
    cluster.look()
    began = cluster.clock.time
    gone, stays = away(entry)
    cluster.world.drop("pod", gone)
    assert charged(cluster) == 5, "the one that is left has two places"
    cluster.clock.time += 60.0
    assert cluster.moves.give_up_move(entry, [stays], "none is ready") == moving.GIVEN_UP - 60.0
    cluster.moves = cluster.made()
    cluster.clock.time = began + moving.GIVEN_UP - 1.0
    assert cluster.moves.give_up_move(entry, [stays], "none is ready") == 1.0
    assert said(entry).status == "True"
    cluster.clock.time += 1.0
    assert cluster.moves.give_up_move(entry, [stays], "none is ready") == 0.0
    assert (said(entry).status, said(entry).reason) == ("False", "PodsNotReady")
    assert said(entry).message.endswith("none is ready")
    assert held_once(cluster, entry) == 4, "three run, and the successor has its place"
    assert ("train", "PodsNotReady") in {(name, reason) for name, reason, _ in cluster.recorder.told}


def test_a_pod_that_is_given_a_day_to_end_holds_no_second_place_for_that_day(cluster):
    entry, other = cluster.spread()
    cluster.gone(other)
    cluster.look()
    ending = [
        ends(cluster, pod, seconds) for pod, seconds in zip(away(entry), (moving.GIVEN_UP + 30.0, 86400.0), strict=True)
    ]
    assert charged(cluster) == 6
    cluster.clock.time += moving.GIVEN_UP
    assert cluster.moves.give_up_move(entry, [], "they take long to stop", ending) == 0.0
    old = entry.slots.slots[entry.slots.of_selector(ending[1].spec.node_selector)]
    assert old.count == 1, "the other one is gone soon, and its successor moves"
    assert charged(cluster) == 5, "until the first one is gone"


def ends(cluster, pod, seconds):
    """The pod, as it is deleted with so much time to end."""
    meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=timestamp(cluster.clock.time + seconds))
    made = msgspec.structs.replace(pod, metadata=meta)
    cluster.world.put("pod", made)
    return made


def test_who_deletes_the_workload_gets_no_longer_for_its_move(cluster):
    entry = apart(cluster, request=IN_SLICES)
    cluster.look()
    cluster.clock.time += moving.GIVEN_UP
    again = msgspec.structs.replace(said(entry), last_transition_time=timestamp(cluster.clock.time))
    kept = [one for one in entry.observed.conditions if one.type != MOVING]
    entry.observe(_with(entry.observed, (*kept, again)))
    gone, *stay = away(entry)
    cluster.world.drop("pod", gone)
    assert cluster.moves.put_back(entry, stay, "a budget refuses")
    assert [slot.count for slot in entry.slots.slots] == [1, 2, 1], "three stay, and one place is there for the fourth"


def test_pods_that_finished_have_no_place_that_another_could_get_back(cluster):
    entry, _ = cluster.spread()
    cluster.look()
    astray = away(entry)
    for number in range(2):  # successors that have ended already
        slot = next(slot for slot in entry.slots.slots if slot.count > number)
        done = make_pod(f"done-{number}", owner=entry.job, at=slot.values, node=slot.node, phase="Failed")
        cluster.world.put("pod", done)
    assert cluster.moves.put_back(entry, astray, "a budget refuses")
    assert not {pod.metadata.uid for pod in astray} & {pod.metadata.uid for pod in away(entry)}


def test_where_one_of_them_gets_no_place_nothing_is_put_back(cluster):
    entry, _ = cluster.spread()
    cluster.look()
    held, astray = entry.admission, away(entry)
    places = {slot.values: slot for slot in entry.slots.slots}
    used = [entry.slots.of_selector(pod.spec.node_selector) for pod in entry.pods.values()]
    free = [slot for at, slot in enumerate(places.values()) for _ in range(slot.count - used.count(at))]
    for number, slot in enumerate(free):
        pod = make_pod(f"new-{number}", owner=entry.job, at=slot.values, node=slot.node, phase="Running")
        cluster.world.put("pod", pod)
    assert not cluster.moves.put_back(entry, astray, "a budget refuses")
    assert entry.admission is held
    assert said(entry).status == "True"


def test_an_error_with_one_keeps_nobody_else_from_it(cluster, monkeypatch):
    entry, other = cluster.spread()
    before = relocation.is_spread

    def fails(one):
        if one is other:
            raise RuntimeError("nobody foresaw this")
        return before(one)

    monkeypatch.setattr(relocation, "is_spread", fails)
    cluster.look()
    assert cluster.begun == [entry.key]


def test_who_has_many_that_cannot_be_moved_keeps_nobody_waiting(cluster):
    """Eight are looked at a time; a tenant has nine that want it and never can, with names that come first."""
    entry, _ = cluster.spread(name="z-train")
    found = {f"a/{number}": copy_of(entry, "a", f"j{number}") for number in range(2 * moving.SEARCHES)}
    cluster.moves._wants = lambda one, _now: True
    cluster.moves._cache = Entered(cluster.world.memory, [*found.values(), entry])
    assert cluster.moves._in_turn(NOW)[1] is entry, "one of each namespace"
    cluster.moves._log.begin_move(entry.key, NOW)
    for number in range(3):
        cluster.moves._turns.record_vain_search(f"a/j{number}", NOW + number)
    order = cluster.moves._in_turn(NOW)
    assert order.index(entry) == 2
    assert order[0].key == "a/j10"
    assert order[-1].key == "a/j2"


# --- pods that lack what they ask for ------------------------------------------------------------------------------


def lacking(cluster, *pods):
    cluster.world.memory.unkept = lambda entry: {pod: "wishes one zone" for pod in pods if pod in entry.pods}
    for entry in cluster.world.memory.entries.values():
        entry.mismatches.update({pod: None for pod in pods if pod in entry.pods})


def test_a_pod_that_lacks_what_it_asks_for_goes_to_another_node_of_its_rack(cluster):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    (slot,) = entry.slots.slots
    lacking(cluster, "uid-train-r1-h1-0")
    cluster.look()
    assert {one.node: one.count for one in entry.slots.slots} == {"r1-h1": 1, "r1-h2": 1}
    assert slot.count == 2
    assert said(entry).reason == "Realign"
    assert "train-r1-h1-0 wishes one zone" in said(entry).message


def test_where_its_rack_has_no_other_node_for_it_it_stays(cluster):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    cluster.filler("other", "r1-h2")
    lacking(cluster, "uid-train-r1-h1-0")
    cluster.look()
    assert cluster.begun == []
    assert {one.node for one in entry.slots.slots} == {"r1-h1"}


def test_one_that_is_misaligned_time_and_again_is_moved_less_and_less_often(cluster):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    begun = []
    for _ in range(200):
        lacking(cluster, *entry.pods)
        over = tuple(one for one in entry.observed.conditions if one.type != MOVING)
        entry.observe(_with(entry.observed, over))
        moved_along(cluster, entry)
        cluster.look(600.0)
        begun.append(len(cluster.begun))
    assert begun[0] == 1
    assert 8 <= len(cluster.begun) <= 5 + 200 // 16 + 1


def moved_along(cluster, entry):
    """Its pods are where its slots are."""
    places = [slot for slot in entry.slots.slots for _ in range(slot.count)]
    for pod, slot in zip(sorted(entry.pods.values(), key=lambda pod: pod.metadata.name), places, strict=True):
        selector = dict(zip(entry.slots.levels, slot.values, strict=True))
        spec = msgspec.structs.replace(pod.spec, node_selector=selector, node_name=slot.node)
        cluster.world.put("pod", msgspec.structs.replace(pod, spec=spec))


# --- pods of a ReplicaSet ------------------------------------------------------------------------------------------


class Service:
    """A service of two pods on one host, as the controller looks at it; the second one lacks what it asks for."""

    def __init__(self, cluster, request=None, kind="ReplicaSet"):
        self.cluster, self.world = cluster, cluster.world
        owner = msgspec.structs.replace(make_owner("web"), kind=kind, api_version="apps/v1", workload="")
        self.owner, self.request = owner, request or {KEYS.required[0]: "rack"}
        for name in ("a", "b"):
            self.put(name)
        (self.entry,) = self.world.memory.entries.values()
        self.look()
        (slot,) = self.world.admit_entry(self.entry).slots
        self.world.memory.queues.fresh.clear()
        for name in ("a", "b"):
            self.put(name, slot)
        self.look()
        held = Condition(
            type=QUOTA_RESERVED, status="True", reason="Admitted", message="m", last_transition_time=LONG_AGO
        )
        self.entry.observe(_with(self.entry.observed, (held,)))
        lacks = PlacementMismatch(self.entry.pods["uid-b"], slot.node, "", "wishes one zone")
        self.entry.mismatches["uid-b"] = lacks
        self.world.memory.topologies.unkept = lambda pod: "wishes one zone" if pod.metadata.name == "b" else ""

    def put(self, name, slot=None, **more):
        """A pod, behind its gate or where it was sent; one that runs is ready."""
        if slot is None:
            pod = make_pod(name, owner=self.owner, spec=CONTAINERS, **more)
        else:
            owner = msgspec.structs.replace(self.owner, workload=self.entry.job.workload)
            pod = make_pod(name, owner=owner, at=slot.values, node=slot.node, phase="Running", spec=CONTAINERS, **more)
        meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **self.request})
        ready = () if slot is None else (Condition(type="Ready", status="True"),)
        status = msgspec.structs.replace(pod.status, conditions=ready)
        self.world.put("pod", msgspec.structs.replace(pod, metadata=meta, status=status))

    def drop(self, name):
        self.world.drop("pod", self.world.stores["pod"][f"ns/{name}"])

    def look(self, later=0.0):
        """What the controller does for it, in so many seconds."""
        memory, now = self.world.memory, SYSTEM.monotonic() + later
        memory.pod_groups._clock = lambda: now
        assert memory.pod_groups.regroup(self.entry)
        missing_pods.note(self.entry, now)
        return reconcile(self.entry, memory.rules, now, self.cluster.clock.now())

    def places(self):
        return {slot.node: slot.count for slot in self.entry.slots.slots}


CONTAINERS = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
GROWS_OR_SHRINKS = (i.Enqueue, i.UpdateSpec, i.Shrink, i.ShrinkLater, i.Release, i.Remove)


def of(kind, instructions):
    return [found for found in instructions if isinstance(found, kind)]


def test_a_pod_of_a_replica_set_is_replaced_and_its_successor_is_no_growth(cluster):
    service = Service(cluster)
    old = service.entry.slots.slots[0]
    cluster.look()
    assert said(service.entry).reason == "Realign"
    assert service.places() == {"r1-h1": 1, "r1-h2": 1}
    (evict,) = of(i.EvictMoved, service.look())
    assert ([pod.metadata.name for pod, _ in evict.pods], evict.one) == (["b"], True)
    service.put("b", old, terminating=True)
    service.put("c")
    found = service.look()
    assert service.entry.job.count == 2
    assert of((*GROWS_OR_SHRINKS, i.Ungate, i.Delete, i.EvictMoved), found) == []
    service.drop("b")
    found = service.look()
    assert of(GROWS_OR_SHRINKS, found) == []
    (sent,) = of(i.Ungate, found)
    assert (sent.pod.metadata.name, service.entry.slots.slots[sent.index].node) == ("c", "r1-h2")
    service.put("c", next(slot for slot in service.entry.slots.slots if slot.node == "r1-h2"))
    told = [one for w in of(i.WriteConditions, service.look()) for one in w.wanted if one.type == MOVING]
    assert [(one.status, one.reason) for one in told] == [(False, Reason.MOVED)]


def test_a_pod_of_a_stateful_set_without_a_total_is_replaced_when_it_is_gone(cluster):
    service = Service(cluster, kind="StatefulSet")
    old = service.entry.slots.slots[0]
    cluster.look()
    assert said(service.entry).reason == "Realign"
    assert service.places() == {"r1-h1": 1, "r1-h2": 1}
    (evict,) = of(i.EvictMoved, service.look())
    assert ([pod.metadata.name for pod, _ in evict.pods], evict.one) == (["b"], True)
    service.put("b", old, terminating=True)
    assert of((*GROWS_OR_SHRINKS, i.EvictMoved), service.look()) == []
    service.drop("b")
    assert of((*GROWS_OR_SHRINKS, i.EvictMoved), service.look()) == [], "its successor comes only now"
    assert service.entry.job.count == 2
    service.put("b")
    (sent,) = of(i.Ungate, service.look())
    assert (sent.pod.metadata.name, service.entry.slots.slots[sent.index].node) == ("b", "r1-h2")


def test_the_place_of_the_only_pod_of_a_replica_set_is_kept_until_its_successor_is_made(cluster):
    service = Service(cluster)
    service.drop("a")
    service.look()
    cluster.world.memory.reservations.queues.wish(service.entry.key, None)
    smaller = service.entry.slots.without_slots({0: 1})
    held = service.entry.admission.shrink_pod_set("main", smaller, 1)
    cluster.world.memory.admissions.hold_admission(service.entry, held)
    service.look()
    cluster.look()
    assert service.places() == {"r1-h2": 1}
    service.drop("b")
    assert of(GROWS_OR_SHRINKS, service.look()) == []
    service.put("c")
    (sent,) = of(i.Ungate, service.look())
    assert sent.pod.metadata.name == "c"


def test_a_replica_set_that_was_scaled_to_nothing_meanwhile_holds_nothing(cluster):
    service = Service(cluster)
    cluster.look()
    for name in ("a", "b"):
        service.drop(name)
    service.look()
    assert of(i.Remove, service.look(BARE)) != []


def test_a_budget_and_the_limit_an_hour_count_for_a_replica_set(cluster):
    service = Service(cluster)
    budgets = cluster.world.memory.queues.budgets
    budgets.set_selected(service.entry.key, {"ns/keep": 2})
    budgets.allow("ns/keep", 0)
    cluster.look()
    assert cluster.begun == []
    budgets.allow("ns/keep", 1)
    cluster.moves = cluster.made(MoveRules())
    cluster.look()
    assert cluster.begun == []
    cluster.moves = cluster.made()
    cluster.look()
    assert cluster.begun == [service.entry.key]


def made_by(entry, kind):
    """The same as pods of a service that does not tell how many it has."""
    entry.set_view(entry.job, msgspec.structs.replace(entry.job, kind=kind, api_version="apps/v1", open_ended=True))
    for pod in list(entry.pods.values()):
        refs = tuple(
            msgspec.structs.replace(one, kind=kind, api_version="apps/v1") for one in pod.metadata.owner_references
        )
        meta = msgspec.structs.replace(pod.metadata, owner_references=refs)
        entry.pods[pod.metadata.uid] = msgspec.structs.replace(pod, metadata=meta)


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_a_service_that_was_spread_comes_together(cluster, kind):
    entry, _ = cluster.spread()
    made_by(entry, kind)
    cluster.look()
    assert cluster.begun == [entry.key]
    assert racks(entry) == {"r2"}
    assert said(entry).reason == "PullTogether"


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_a_service_goes_where_an_administrator_says(cluster, kind):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    made_by(entry, kind)
    assert relocation.unmovable(cluster.world.memory, entry) == ""
    ask(cluster, entry, ["r2-h1"])
    cluster.look()
    assert [slot.node for slot in entry.slots.slots] == ["r2-h1"]
    assert said(entry).reason == "Defrag"


# --- what an administrator asks for --------------------------------------------------------------------------------


def ask(cluster, entry, nodes, *, name="r-1", until=NOW + 100.0):
    text = encode(MoveRequest(name, until, {"main": frozenset(nodes)}))
    entry.observe(msgspec.structs.replace(entry.observed, move_to=text))


def said(entry, type_=MOVING):
    return next((one for one in entry.observed.conditions if one.type == type_), None)


def refused(entry):
    return said(entry, MOVE_REFUSED)


def test_pods_go_where_an_administrator_says_whatever_they_prefer(cluster):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    assert [slot.node for slot in entry.slots.slots] == ["r1-h1"]
    ask(cluster, entry, ["r2-h1"])
    cluster.look()
    assert [slot.node for slot in entry.slots.slots] == ["r2-h1"]
    assert (said(entry).status, said(entry).reason) == ("True", "Defrag")
    assert "(request r-1)" in said(entry).message
    for _ in range(3):
        cluster.look()
    assert cluster.begun == [entry.key], "once"


@pytest.mark.parametrize(
    ("nodes", "reason", "why"),
    [
        (["r1-h1"], "NothingToMove", "is there already"),
        (["r9-h9"], "DoesNotFit", "not moved"),
    ],
)
def test_it_is_answered_once_with_the_request_that_it_is_about(cluster, nodes, reason, why):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    ask(cluster, entry, nodes)
    cluster.look()
    assert cluster.begun == []
    assert refused(entry).reason in {reason, "NeverFits", "NoNodes"}
    assert why in refused(entry).message
    assert "(request r-1)" in refused(entry).message
    before = refused(entry)
    cluster.look()
    assert refused(entry) is before
    ask(cluster, entry, ["r2-h1"], name="r-2")
    cluster.look()
    assert cluster.begun == [entry.key], "the next one is another"


def test_a_request_says_nothing_while_a_move_is_under_way(cluster):
    """What is stored of the move is by what its pods are evicted, and not deleted."""
    entry, _ = cluster.spread()
    cluster.look()
    under_way = said(entry)
    assert under_way.status == "True"
    ask(cluster, entry, ["r1-h1"])
    cluster.look()
    assert said(entry) is under_way


def test_a_refusal_leaves_what_is_told_of_the_last_move(cluster):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    for reason in ("Moved", "EvictionBlocked", "Evicted"):
        last = Condition(
            type=MOVING, status="False", reason=reason, message="m", last_transition_time="2027-01-15T07:59:00Z"
        )
        kept = [one for one in entry.observed.conditions if one.type not in {MOVING, MOVE_REFUSED}]
        entry.observe(_with(entry.observed, (*kept, last)))
        ask(cluster, entry, ["r1-h1"])
        cluster.look()
        assert said(entry) is last
        assert refused(entry).reason == "NothingToMove"
        again = cluster.made(MoveRules(per_hour=1, rest=600.0))
        again._remember(cluster.clock.now())
        assert again._log.moves_left(cluster.clock.now()) == 0


def test_what_is_refused_is_no_move_after_a_restart(cluster):
    entry = cluster.job(pods=2, request={KEYS.required[0]: "rack"})
    ask(cluster, entry, ["r1-h1"])
    cluster.look()
    assert (said(entry), refused(entry).status) == (None, "True")
    again = cluster.made(MoveRules(per_hour=1, rest=600.0))
    again._remember(cluster.clock.now())
    assert again._log.moves_left(cluster.clock.now()) == 1


def test_the_limit_counts_for_an_administrator_too():
    cluster = Moving(MoveRules(per_hour=0))
    entry = cluster.job(pods=2)
    ask(cluster, entry, ["r2-h1"])
    cluster.look()
    assert cluster.begun == []
    assert refused(entry).reason == "MovesUsedUp"
    assert "no more than 0 moves an hour" in refused(entry).message


def test_an_administrator_has_moves_left_when_tenants_used_up_theirs():
    cluster = Moving(MoveRules(per_hour=2, rest=600.0))
    entry = cluster.job(pods=2)
    cluster.moves._log.begin_move("tenant/one", NOW)
    assert cluster.moves._log.moves_left(NOW) == 0
    ask(cluster, entry, ["r2-h1"])
    cluster.look()
    assert cluster.begun == [entry.key]


def test_a_budget_counts_for_an_administrator_too(cluster):
    entry = cluster.job(pods=2)
    budgets = cluster.world.memory.queues.budgets
    budgets.set_selected(entry.key, {"ns/keep": 2})
    budgets.allow("ns/keep", 1)
    ask(cluster, entry, ["r2-h1"])
    cluster.look()
    assert cluster.begun == []
    assert "PodDisruptionBudget" in refused(entry).message


def test_a_request_that_is_old_or_no_request_is_passed_over(cluster):
    entry = cluster.job(pods=2)
    ask(cluster, entry, ["r2-h1"], until=NOW - 1.0)
    cluster.look()
    for text in (
        "{",
        "[]",
        "null",
        '{"id":"x"}',
        '{"id":"","until":"2999-01-01T00:00:00Z","nodes":{"main":["r2-h1"]}}',
    ):
        entry.observe(msgspec.structs.replace(entry.observed, move_to=text))
        cluster.look()
    assert cluster.begun == []
    assert said(entry) is None


def test_those_for_whom_nothing_changed_take_nobodys_place(cluster, monkeypatch):
    entry, other = cluster.spread()
    monkeypatch.setattr(moving, "LOOKED_AT", 1)
    cluster.moves._wants = lambda *_: True
    cluster.moves._turns.record_vain_search(other.key, -1.0, cluster.world.memory.queues.freed_so_far(other.key))
    cluster.look()
    assert cluster.begun == [entry.key]


def test_one_for_whom_nothing_changed_is_looked_at_again_when_something_did(cluster):
    entry, _ = cluster.spread()
    free = cluster.world.memory.queues.freed_so_far(entry.key)
    cluster.moves._turns.record_vain_search(entry.key, 1.0, free)
    cluster.look()
    assert cluster.begun == []
    cluster.moves._turns.record_vain_search(entry.key, 1.0, (*free, 1))
    cluster.look()
    assert cluster.begun == [entry.key]


class Entered:
    def __init__(self, memory, entries):
        self.guard = memory.guard
        self.entries = {entry.id: entry for entry in entries}
        self.queues = memory.queues


def copy_of(entry, namespace, name):
    job = msgspec.structs.replace(entry.job, namespace=namespace, name=name, uid=name, workload=name)
    return msgspec.structs.replace(entry, job=job)


# --- those that go as a whole --------------------------------------------------------------------------------------

IN_SLICES = {**PREFERRED, KEYS.slice_level: "kubernetes.io/hostname", KEYS.slice_size: "2"}


def apart(cluster, *, kind="Job", api="batch/v1", room=("r3-h1", "r3-h2"), **more):
    """A job of two slices in two racks, beside others that have the rest of them; then a third rack has ``room``."""
    for host in ("h1", "h2"):
        cluster.world.put("node", make_node("r3", host))
    others = {node: cluster.filler(node, node) for node in ("r1-h1", "r2-h1", "r3-h1", "r3-h2")}
    entry = cluster.job(**more)
    assert racks(entry) == {"r1", "r2"}
    for node in room:
        cluster.gone(others[node])
    for pod in list(entry.pods.values()):
        refs = tuple(msgspec.structs.replace(one, kind=kind, api_version=api) for one in pod.metadata.owner_references)
        meta = msgspec.structs.replace(pod.metadata, owner_references=refs)
        entry.pods[pod.metadata.uid] = msgspec.structs.replace(pod, metadata=meta)
    return entry


def test_a_job_with_slices_comes_together_as_a_whole(cluster):
    entry = apart(cluster, request=IN_SLICES)
    assert relocation.unmovable(cluster.world.memory, entry) == ""
    cluster.look()
    assert cluster.begun == [entry.key]
    assert [(slot.node, slot.count) for slot in entry.slots.slots] == [("r3-h1", 2), ("r3-h2", 2)]
    free = [cluster.world.memory.state.free_on_node(node)["cpu"] for node in ("r3-h1", "r3-h2", "r1-h2", "r2-h2")]
    assert free == [0] * 4, "its next place is kept before the first pod goes, and the old one while pods are there"
    (evict,) = of(i.EvictMoved, reconcile(entry, cluster.world.memory.rules, 0.0, NOW))
    assert (len(evict.pods), evict.one) == (4, False)


def test_a_job_with_slices_stays_where_not_all_of_it_has_another_place(cluster):
    entry = apart(cluster, request=IN_SLICES, room=("r3-h1", "r1-h1"))
    cluster.look()
    assert cluster.begun == []
    ask(cluster, entry, ["r1-h1", "r1-h2"])
    cluster.look()
    assert cluster.begun == []
    assert refused(entry).reason == "NeverFits", "of the nodes that are named it has one already"


def test_one_that_goes_as_a_whole_comes_back_as_a_whole_or_not(cluster):
    entry = apart(cluster, request=IN_SLICES)
    before = [(slot.values, slot.count) for slot in entry.slots.slots]
    cluster.look()
    pods = away(entry)
    assert not cluster.moves.put_back(entry, pods[1:], "a budget refuses")
    assert said(entry).status == "True", "the budget is asked on and on"
    assert cluster.moves.put_back(entry, pods, "a budget refuses")
    assert [(slot.values, slot.count) for slot in entry.slots.slots] == before


def test_a_group_of_a_leader_worker_set_goes_at_once_where_an_administrator_says(cluster):
    entry = apart(cluster, kind="StatefulSet", api="apps/v1")
    entry.set_view(entry.job, msgspec.structs.replace(entry.job, kind="LeaderWorkerSet"))
    ask(cluster, entry, ["r3-h1", "r3-h2"])
    cluster.look()
    assert cluster.begun == [entry.key]
    assert racks(entry) == {"r3"}
    (evict,) = of(i.EvictMoved, reconcile(entry, cluster.world.memory.rules, 0.0, NOW))
    assert (len(evict.pods), evict.one) == (4, False), "all of it is made anew when one of its pods goes"


def test_pods_of_a_group_that_are_disrupted_together_go_all_at_once(cluster):
    entry = apart(cluster)
    entry.set_view(entry.job, msgspec.structs.replace(entry.job, whole=True))
    assert relocation.unmovable(cluster.world.memory, entry) == ""
    cluster.look()
    assert cluster.begun == [entry.key]
    assert [(slot.node, slot.count) for slot in entry.slots.slots] == [("r3-h1", 2), ("r3-h2", 2)]
    (evict,) = of(i.EvictMoved, reconcile(entry, cluster.world.memory.rules, 0.0, NOW))
    assert (len(evict.pods), evict.one) == (4, False)


def test_such_a_group_stays_where_not_all_of_it_has_another_place(cluster):
    entry = apart(cluster, room=("r3-h1", "r1-h1"))
    entry.set_view(entry.job, msgspec.structs.replace(entry.job, whole=True))
    cluster.look()
    assert cluster.begun == [], "two of its pods could go to the rack of the others, and would go alone"


def test_such_a_group_stays_where_pods_of_others_are_in_it(cluster):
    group = {"schedulingGroup": {"podGroupName": "ring"}}
    entry = apart(cluster, pod=group)
    other = make_pod("other", owner=make_owner("other"), node="r3-h1", phase="Running", spec=group)
    cluster.world.put("pod", other)
    entry.set_view(entry.job, msgspec.structs.replace(entry.job, whole=True))
    assert "has pods of others" in relocation.unmovable(cluster.world.memory, entry)
    cluster.look()
    assert cluster.begun == []
    cluster.world.drop("pod", other)
    assert relocation.unmovable(cluster.world.memory, entry) == ""


def test_a_service_that_does_not_tell_how_many_pods_it_has_does_not_go_as_a_whole(cluster):
    entry = apart(cluster, request=IN_SLICES)
    change = {"kind": "ReplicaSet", "api_version": "apps/v1", "open_ended": True}
    entry.set_view(entry.job, msgspec.structs.replace(entry.job, **change))
    assert "allows no move" in relocation.unmovable(cluster.world.memory, entry)
    cluster.look()
    assert cluster.begun == []


def broken(cluster, *, priority=0):
    """Each rack has two CPUs of four in use by a job of its own; another job has waited long for all of one rack."""
    first = cluster.job("one", 2, request=REQUIRED)
    other = cluster.filler("other", "r1-h2")
    second = cluster.job("two", 2, request=REQUIRED)
    cluster.gone(other)
    assert {*racks(first), *racks(second)} == {"r1", "r2"}
    job = make_job("gang", parallelism=4, labels={KEYS.queue_name: "team"}, suspend=True)
    cluster.world.put("job", job)
    entry = cluster.world.memory.entries[id_of(job)]
    entry.observe(make_known(entry.job, priority=priority))
    cluster.world.memory.admissions.enqueue_entry(entry)
    waiting = cluster.world.memory.queues.entries[entry.key]
    waiting.restart(cluster.clock.time - HOUR)
    assert not cycle(cluster.world.memory.state, cluster.world.memory.queues, cluster.clock.time).admitted
    assert entry.key in cluster.world.memory.queues.claims
    return first, second, entry


def test_one_goes_elsewhere_for_a_job_that_waits_long_for_its_rack(cluster):
    first, second, waiting = broken(cluster)
    before = racks(first), racks(second)
    cluster.look()
    assert len(cluster.begun) == 1
    (gone,) = [entry for entry in (first, second) if entry.key in cluster.begun]
    assert {*racks(first), *racks(second)} == before[1 if gone is first else 0]
    (said,) = [one for one in gone.observed.conditions if one.type == MOVING]
    assert (said.status, said.reason) == ("True", "MakeRoom")
    assert waiting.job.title in said.message
    cluster.look(after=HOUR)
    assert len(cluster.begun) == 1, "it is under way"


@pytest.mark.parametrize(
    "rules", [MoveRules(), MoveRules(per_hour=5, rest=600.0, room=False), MoveRules(per_hour=5, rest=HOUR + 60)]
)
def test_nobody_goes_where_that_is_not_allowed_or_too_early(rules):
    cluster = Moving(rules)
    broken(cluster)
    cluster.look()
    assert not cluster.begun


@pytest.mark.parametrize(("limit", "moves"), [(None, 0), (-1, 0), (0, 1)])
def test_one_goes_for_a_lower_priority_up_to_a_limit_alone(limit, moves):
    settings = Settings(moves_per_hour=5, move_rest_seconds=600, make_room_max_priority=limit)
    cluster = Moving(move_rules(settings))
    broken(cluster, priority=-5)
    cluster.look()
    assert len(cluster.begun) == moves


def test_nobody_goes_who_says_that_it_is_not_safe(cluster):
    first, second, _ = broken(cluster)
    for entry in (first, second):
        for pod in list(entry.pods.values()):
            meta = msgspec.structs.replace(
                pod.metadata,
                annotations={**pod.metadata.annotations, "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            )
            cluster.world.put("pod", msgspec.structs.replace(pod, metadata=meta))
    cluster.look()
    assert not cluster.begun
