"""The cycle: order, turns, flavors, partial admission, parking, messages, stopped queues."""

import msgspec
import pytest
from support.queue_factories import (
    GPU,
    HOST,
    RACK,
    keys,
    make_node,
    make_pod_set,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.cluster.assignment import Assignment, Slice
from engine.model import HOSTNAME_LABEL, Flavor, Pod, PodTerm, Policy, SliceLayer, Taint, Toleration, TopologyRequest
from engine.reasons import Reason
from queueing.cycle.cycle import cycle
from queueing.model import (
    AUTO,
    ClusterQueue,
    LabelRequirement,
    LocalQueue,
    PlainFlavor,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Rules,
    Stop,
)
from queueing.model import FlavorQuotas as Flavors
from queueing.queues.entry import AssumedAdmission, Phase
from queueing.queues.held import Held


def reasons(decisions):
    return {one.key: one.reason for one in decisions.waiting}


def message(decisions, key):
    return next(one.message for one in decisions.waiting if one.key == key)


def test_priority_then_time_then_key():
    state, queues = make_state(), make_queues(make_queue())
    submit(
        queues,
        make_workload("c", created=1.0),
        make_workload("b", created=1.0),
        make_workload("old", created=0.0),
        make_workload("important", created=9.0, priority=5),
    )
    found = run(state, queues)
    assert keys(found) == ["important", "old"]  # 16 GPUs of quota
    assert list(queues.waiting("q")) == ["b", "c"]


def test_of_one_second_names_decide_with_numbers_read_as_numbers():
    """The API server keeps whole seconds: whatever is made in a loop has one time."""
    names = [f"ns/job-job-{at}-{hash_}" for at, hash_ in ((10, "0a"), (1, "9f"), (2, "5c"), (21, "11"), (3, "77"))]
    state, queues = make_state(4, 4), make_queues(make_queue("q", 0))
    submit(queues, *(make_workload(name, created=7.0) for name in names))
    assert [name.split("-")[2] for name in queues.waiting("q")] == ["1", "2", "3", "10", "21"]
    one_by_one = make_queues(make_queue("q", 128))
    submit(one_by_one, *(make_workload(name, created=7.0) for name in names))
    assert [name.split("-")[2] for name in keys(cycle(state, one_by_one, 8.0))] == ["1", "2", "3", "10", "21"]


def test_a_row_goes_before_a_name():
    state, queues = make_state(4, 4), make_queues(make_queue("q", 128))
    submit(queues, *(make_workload(name, created=7.0, row=at) for at, name in enumerate("cab")))
    assert keys(cycle(state, queues, 8.0)) == ["c", "a", "b"]


def test_many_of_one_queue_in_one_cycle():
    state, queues = make_state(4, 4), make_queues(make_queue("q", 128))
    submit(queues, *(make_workload(f"w{i:02}", created=float(i)) for i in range(16)))
    assert keys(cycle(state, queues, 1.0)) == [f"w{i:02}" for i in range(16)]


def test_strict_fifo_holds_up_and_best_effort_does_not():
    for strict, admitted in ((True, ["small0"]), (False, ["small0", "small2"])):
        state, queues = make_state(2, 1), make_queues(make_queue("q", 16, strict=strict))
        submit(
            queues,
            make_workload("small0", created=0.0),
            make_workload("large1", count=2, created=1.0, level=None),
            make_workload("small2", created=2.0),
        )
        found = run(state, queues)
        assert keys(found) == admitted
        waits = reasons(found)
        assert waits["large1"] in {Reason.DOES_NOT_FIT, Reason.INSUFFICIENT_QUOTA}
        assert waits.get("small2") == (Reason.BEHIND_OTHERS if strict else None)


def test_one_that_can_never_fit_holds_up_nobody():
    state, queues = make_state(2, 1), make_queues(make_queue("q", 16, strict=True))
    submit(queues, make_workload("huge", count=9), make_workload("never", count=2, created=1.0))
    submit(queues, make_workload("fine", created=2.0))
    found = run(state, queues)
    assert keys(found) == ["fine"]
    assert reasons(found) == {"huge": Reason.EXCEEDS_QUOTA, "never": Reason.NEVER_FITS}
    state.set_node(make_node("more", "tas-r0"))
    queues.pending.room_freed(["tas"])
    found = run(state, queues)  # it fits the nodes now, but not what is left of the quota
    assert reasons(found) == {"never": Reason.INSUFFICIENT_QUOTA}


def test_queues_take_turns():
    state, queues = make_state(1, 6), make_queues(make_queue("a", 48), make_queue("b", 48))
    submit(queues, *(make_workload(f"a{i}", "a", created=float(i)) for i in range(9)))
    submit(queues, *(make_workload(f"b{i}", "b", created=100.0 + i) for i in range(9)))
    assert keys(run(state, queues)) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_turns_go_on_from_cycle_to_cycle():
    state, queues = make_state(1, 6), make_queues(*(make_queue(f"q{i}", 48) for i in range(6)))
    for i in range(6):
        submit(queues, *(make_workload(f"q{i}-{j}", f"q{i}", created=float(i)) for j in range(9)))
    first = [key for _ in range(3) for key in keys(cycle(state, queues, 1.0, limit=2))]
    assert first == [f"q{i}-0" for i in range(6)]


def test_who_does_not_borrow_goes_first():
    state = make_state(1, 2)
    queues = make_queues(make_queue("a", 0, cohort="c"), make_queue("b", 16, cohort="c"))
    submit(queues, make_workload("borrower", "a", priority=9), make_workload("owner", "b", created=5.0))
    assert keys(run(state, queues)) == ["owner", "borrower"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("before", [1, 4])
def test_who_does_not_borrow_goes_first_however_many_of_its_queue_come_before_it(before, fair):
    """Else the borrower has what comes free, and the owner has it evicted in the next cycle."""
    state, reclaims = make_state(1, 1), Preemption(reclaim=Reclaim.ANY)
    queues = make_queues(
        make_queue("a", 0, cohort="c", preemption=reclaims),
        make_queue("b", 8, cohort="c", preemption=reclaims),
        rules=Rules(fair=fair),
    )
    submit(queues, make_workload("borrower", "a", created=0.5))
    submit(queues, *(make_workload(f"large{at}", "b", 2 + at, created=float(at)) for at in range(before)))
    submit(queues, make_workload("owner", "b", created=99.0))
    made = run(state, queues)
    assert keys(made) == ["owner"]
    assert not run(state, queues, 2.0).preempting


def test_who_does_not_borrow_goes_before_a_borrower_of_a_queue_with_somebody_who_need_not():
    """Else that one has the turn of the one behind it, and is evicted in the next cycle."""
    state, reclaims = make_state(1, 3), Preemption(reclaim=Reclaim.ANY)
    queues = make_queues(
        make_queue("a", 8, cohort="c", preemption=reclaims), make_queue("b", 16, cohort="c", preemption=reclaims)
    )
    submit(queues, make_workload("borrower", "a", 2, priority=5), make_workload("small", "a", created=1.0))
    submit(queues, make_workload("owner", "b", 2, created=2.0))
    assert keys(run(state, queues)) == ["owner", "small"]
    assert not run(state, queues, 2.0).preempting


def test_the_first_of_a_strict_queue_that_would_borrow_comes_after_who_borrowed_before_it():
    """Nobody behind it would be looked at anyway."""
    state = make_state(1, 1)
    queues = make_queues(make_queue("a", 0, cohort="c"), make_queue("b", 8, cohort="c", strict=True))
    submit(queues, make_workload("borrower", "a", created=0.5))
    submit(queues, make_workload("large", "b", 2, created=1.0), make_workload("owner", "b", created=99.0))
    assert keys(run(state, queues)) == ["borrower"]


def test_a_refused_one_is_looked_at_again_only_after_an_event_that_could_help():
    state, queues = make_state(2, 1), make_queues(make_queue("q", 32), make_queue("other", 8))
    submit(queues, make_workload("a"), make_workload("b", created=1.0), make_workload("c", created=2.0))
    assert keys(run(state, queues)) == ["a", "b"]
    submit(queues, make_workload("d", "other", created=3.0))
    assert keys(run(state, queues)) == []
    assert not cycle(state, queues, 2.0).more
    assert all(line.next() is None for line in queues.pending.lines.values())
    queues.pending.move_events_to_active([("quota", "queue other", "tas", GPU)])
    assert all(line.next() is None for line in queues.pending.lines.values())
    queues.remove_workload(state, "b")
    assert keys(run(state, queues)) == ["c"]


def parked(queues, queue):
    """How many groups of a queue nobody looks at."""
    return sum(group.inadmissible for group in queues.pending.lines[queue].groups.values())


def test_room_in_one_flavor_wakes_only_those_who_wait_for_it():
    state = make_state(1, 2, flavors=("tas", "old"))
    queues = make_queues(make_queue("a", 99, flavors=("tas",)), make_queue("b", 99, flavors=("old",)))
    submit(queues, *(make_workload(f"{queue}{i}", queue) for queue in "ab" for i in range(2)))
    run(state, queues)
    submit(queues, *(make_workload(f"{queue}-{i}", queue, gpu=i) for queue in "ab" for i in range(1, 9)))
    assert keys(run(state, queues)) == []
    assert (parked(queues, "a"), parked(queues, "b")) == (8, 8)
    queues.pending.room_freed(state.flavors_on("tas-0"))
    assert (parked(queues, "a"), parked(queues, "b")) == (0, 8)
    run(state, queues)
    queues.remove_workload(state, "a0")
    assert (parked(queues, "a"), parked(queues, "b")) == (0, 8)
    assert keys(run(state, queues)) == ["a-1", "a-2", "a-3"]


def test_flavors_that_share_nodes_help_each_other():
    state = make_state(1, 2)
    state.set_flavor(Flavor(name="all", levels=(RACK, HOSTNAME_LABEL)))
    queues = make_queues(make_queue("a", 99), make_queue("b", 99, flavors=("all",)))
    submit(queues, make_workload("first", "a", 2))
    assert keys(run(state, queues)) == ["first"]
    submit(queues, make_workload("waits", "b"))
    assert keys(run(state, queues)) == []
    queues.remove_workload(state, "first")
    assert keys(run(state, queues)) == ["waits"]


def one_zone():
    """A node of each of two flavors, both in one zone, and a queue for each flavor."""
    state = make_state(1, 1, flavors=("tas", "old"))
    for node in tuple(state.nodes.values()):
        state.set_node(msgspec.structs.replace(node, labels={**node.labels, "zone": "z"}))
    return state, make_queues(make_queue("a", 99), make_queue("b", 99, flavors=("old",)))


KEEPS_OFF = {"labels": {"app": "x"}, "anti_affinity": (PodTerm(topology_key="zone", selector=(), namespaces=("ns",)),)}


def test_who_looks_at_other_pods_is_helped_by_pods_that_go_in_another_flavor():
    state, queues = one_zone()
    pod = Pod(key="ns/p", namespace="ns", node="tas-0", requests={GPU: 1}, labels={"app": "y"})
    state.set_pod(pod)
    submit(queues, make_workload("alone", "b", pod_sets=(make_pod_set(**KEEPS_OFF),)))
    assert keys(run(state, queues)) == []
    state.remove_pod("ns/p")
    queues.pending.room_freed(state.flavors_on("tas-0"))
    assert keys(run(state, queues)) == ["alone"]


def test_whoever_kept_others_out_of_a_zone_helps_those_of_all_flavors():
    state, queues = one_zone()
    submit(queues, make_workload("alone", "a", pod_sets=(make_pod_set(**KEEPS_OFF),)))
    assert keys(run(state, queues)) == ["alone"]
    submit(queues, make_workload("other", "b", pod_sets=(make_pod_set(labels={"app": "y"}),)))
    assert keys(run(state, queues)) == []
    queues.remove_workload(state, "alone")
    assert keys(run(state, queues)) == ["other"]


def test_groups_of_equals_are_looked_at_once():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8))
    submit(queues, *(make_workload(f"w{i:03}", created=float(i)) for i in range(200)))
    found = cycle(state, queues, 1.0, limit=3)
    assert keys(found) == ["w000"]
    assert not found.more  # one look refused all 199
    found = [cycle(state, queues, 1.0, limit=64) for _ in range(4)]
    assert sum(len(one.waiting) for one in found) == 199 - 1 - 3  # and all are told, a few a cycle
    assert "w001, which wants the same" in found[0].waiting[0].message


def test_flavors_are_tried_in_order_and_only_where_all_fits():
    state = make_state(1, 2, flavors=("tas", "old"))
    queues = make_queues(make_queue("q", {"tas": 8, "old": 16}))
    submit(queues, make_workload("a"), make_workload("b", created=1.0), make_workload("rack", count=2, created=2.0))
    found = run(state, queues)
    assert [one.grant.flavors["main"][GPU] for one in found.admitted] == ["tas", "old"]
    queues.remove_workload(state, "b")
    (rack,) = run(state, queues).admitted
    assert rack.grant.assignments[0].flavor == "old"


@pytest.mark.parametrize(("borrow_first", "flavor"), [(True, "tas"), (False, "old")])
def test_borrowing_or_the_next_flavor_first(borrow_first, flavor):
    state = make_state(1, 2, flavors=("tas", "old"))
    queues = make_queues(
        make_queue("q", {"tas": 0, "old": 8}, cohort="c", borrow_first=borrow_first),
        make_queue("lender", {"tas": 16, "old": 0}, cohort="c"),
    )
    submit(queues, make_workload("w"))
    (admitted,) = run(state, queues).admitted
    assert admitted.grant.flavors["main"][GPU] == flavor


def test_a_flavor_without_a_topology_counts_quota_and_selects_nodes():
    state = make_state(1, 2)
    state.set_node(make_node("spot", "tas-r0", gpu=8))
    groups = (
        ResourceGroup(resources=(GPU,), flavors=(Flavors(flavor="tas", resources={GPU: Quota(nominal=32)}),)),
        ResourceGroup(resources=("cpu",), flavors=(Flavors(flavor="spot", resources={"cpu": Quota(nominal=4000)}),)),
    )
    queues = make_queues(ClusterQueue(name="q", groups=groups))
    queues.set_flavor(PlainFlavor(name="spot", node_labels={HOSTNAME_LABEL: "spot"}))
    pod_set = make_pod_set(2, gpu=1, level=None)
    both = make_pod_set(2, gpu=1, level=None, name="both")
    both = type(both)(**{f: getattr(both, f) for f in both.__struct_fields__} | {"requests": {GPU: 1, "cpu": 2000}})
    submit(queues, make_workload("w", pod_sets=(pod_set, both)))
    (admitted,) = run(state, queues).admitted
    assert admitted.grant.amounts == {("tas", GPU): 4, ("spot", "cpu"): 4000}
    on = {part.pod_set: {piece.values[-1] for piece in part.slices} for part in admitted.grant.assignments}
    assert on["both"] == {"spot"}


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "PreferNoSchedule"])
@pytest.mark.parametrize("topology", [True, False], ids=["topology", "quota alone"])
@pytest.mark.parametrize("by", ["nobody", "the pods", "the flavor"])
def test_pods_go_to_a_flavor_whose_taints_they_or_it_tolerate(effect, topology, by):
    state, taint = make_state(1, 2, flavors=("spot", "tas")), Taint(key="spot", value="yes", effect=effect)
    tolerates = (Toleration(key="spot", value="yes"),)
    own = tolerates if by == "the flavor" else ()
    queues = make_queues(make_queue("q", flavors=("spot", "tas")))
    if topology:
        labels = {"group": "spot"}
        flavor = Flavor(name="spot", levels=(RACK, HOST), node_labels=labels, taints=(taint,), tolerations=own)
        state.set_flavor(flavor)
    else:
        state.remove_flavor("spot")
        queues.set_flavor(PlainFlavor(name="spot", taints=(taint,), tolerations=own))
    pods = make_pod_set(1, level=None, tolerations=tolerates if by == "the pods" else ())
    submit(queues, make_workload("w", pod_sets=(pods,)))
    (admitted,) = run(state, queues).admitted
    kept_out = by == "nobody" and effect != "PreferNoSchedule"
    assert admitted.grant.flavors["main"][GPU] == ("tas" if kept_out else "spot")


def test_who_tolerates_the_taints_of_no_flavor_is_told():
    state = make_state(1, 1)
    taint = Taint(key="spot", effect="NoSchedule")
    state.set_flavor(Flavor(name="tas", levels=(RACK, HOST), node_labels={"group": "tas"}, taints=(taint,)))
    queues = make_queues(make_queue())
    submit(queues, make_workload("w"))
    (waits,) = run(state, queues).waiting
    assert (waits.reason, waits.message) == (
        Reason.NO_FLAVOR,
        "flavor tas has the taint spot:NoSchedule, which the pods do not tolerate",
    )


def test_a_level_that_is_auto_is_the_narrowest_of_each_flavor():
    state = make_state(1, 2)
    state.set_flavor(Flavor(name="wide", levels=(RACK,), node_labels={"group": "wide"}))
    state.set_node(make_node("w0", "wide-r0", group="wide"))
    queues = make_queues(make_queue("q", {"wide": 8, "tas": 8}))
    for i in range(2):
        submit(queues, make_workload(f"w{i}", pod_sets=(make_pod_set(1, level="auto", policy=Policy.PREFERRED),)))
    levels = [one.grant.assignments[0].source.topology.level for one in run(state, queues).admitted]
    assert levels == [RACK, HOST]


def test_fewer_pods_where_the_job_allows_it():
    state, queues = make_state(2, 3), make_queues(make_queue("q", 40))
    submit(queues, make_workload("w", count=9, at_least={"main": 2}))
    (admitted,) = run(state, queues).admitted
    assert admitted.grant.counts == {"main": 3}  # a rack has three nodes
    assert "fewer than it asked for" in admitted.message
    submit(queues, make_workload("v", count=9, created=1.0, at_least={"main": 4}))
    assert keys(run(state, queues)) == []


def test_fewer_pods_come_in_whole_slices():
    state, queues = make_state(2, 3), make_queues(make_queue("q", 40))
    slices = TopologyRequest(policy=Policy.UNCONSTRAINED, slices=(SliceLayer(level=RACK, size=2),))
    pod_set = msgspec.structs.replace(make_pod_set(10), topology=slices)
    submit(queues, make_workload("w", pod_sets=(pod_set,), at_least={"main": 1}))
    (admitted,) = run(state, queues).admitted
    assert admitted.grant.counts == {"main": 4}  # quota is for five pods, and each rack takes one slice of two


def test_a_flavor_without_the_level_of_the_slices_is_not_tried():
    state, queues = make_state(), make_queues(make_queue("q", 40))
    slices = TopologyRequest(policy=Policy.REQUIRED, level=RACK, slices=(SliceLayer(level="row", size=2),))
    submit(queues, make_workload("w", pod_sets=(msgspec.structs.replace(make_pod_set(2), topology=slices),)))
    found = run(state, queues)
    assert reasons(found) == {"w": Reason.UNKNOWN_LEVEL}
    assert "flavor tas has no level row" in message(found, "w")


def test_messages_name_the_quota_what_is_missing_and_who_uses_it():
    state = make_state(2, 2)
    queues = make_queues(make_queue("a", 16, cohort="team"), make_queue("b", 8, cohort="team", borrowing=0))
    submit(queues, make_workload("ns/one", "a", count=2), make_workload("ns/two", "a", created=1.0))
    run(state, queues)
    submit(queues, make_workload("ns/late", "b", created=2.0), make_workload("ns/greedy", "b", count=2, created=3.0))
    found = run(state, queues)
    text = message(found, "ns/late")
    for part in ("8 nvidia.com/gpu of flavor tas wanted", "8 more than is left", "nominal 8", "also a 24", "ns/one"):
        assert part in text
    assert "at most 8 possible" in message(found, "ns/greedy")


def test_what_no_queue_takes_is_told_and_comes_when_one_does():
    state, queues = make_state(), make_queues(make_queue("q", 16, namespaces=None))
    submit(queues, make_workload("w"), make_workload("lost", "nowhere"))
    assert reasons(run(state, queues)) == {"w": Reason.NAMESPACE_NOT_SELECTED, "lost": Reason.NO_QUEUE}
    queues.set_cluster_queue(
        make_queue("q", 16, namespaces=(LabelRequirement(key="team", operator="In", values=("ns",)),))
    )
    assert keys(run(state, queues)) == ["w"]
    queues.set_local_queue(LocalQueue(namespace="ns", name="nowhere", cluster_queue="gone"))
    assert reasons(run(state, queues)) == {"lost": Reason.NO_QUEUE}
    queues.set_local_queue(LocalQueue(namespace="ns", name="nowhere", cluster_queue="q"))
    assert keys(run(state, queues)) == ["lost"]


def test_a_resource_without_quota_is_refused():
    state, queues = make_state(), make_queues(make_queue())
    submit(queues, make_workload("w", pod_sets=(make_pod_set(1, name="x"),)))
    pod_set = make_pod_set()
    asks = type(pod_set)(**{f: getattr(pod_set, f) for f in pod_set.__struct_fields__} | {"requests": {"fpga": 1}})
    submit(queues, make_workload("fpga", pod_sets=(asks,)))
    assert reasons(run(state, queues)) == {"fpga": Reason.NO_QUOTA}


def test_hold_admits_nobody_and_drain_evicts():
    state, queues = make_state(), make_queues(make_queue("q", 16))
    submit(queues, make_workload("a"))
    run(state, queues)
    queues.set_cluster_queue(make_queue("q", 16, stop=Stop.HOLD))
    submit(queues, make_workload("b"))
    found = run(state, queues)
    assert reasons(found) == {"b": Reason.QUEUE_STOPPED}
    assert found.evict == []
    queues.set_cluster_queue(make_queue("q", 16, stop=Stop.DRAIN))
    (evict,) = run(state, queues).evict
    assert (evict.key, evict.reason) == ("a", Reason.QUEUE_DRAINED)
    assert run(state, queues).evict == []  # told once
    queues.release_and_requeue(state, "a", 2.0)
    assert queues.entries["a"].phase is Phase.STUCK
    queues.set_cluster_queue(make_queue("q", 16))
    assert keys(run(state, queues)) == ["a", "b"]


def test_put_off_until_its_time():
    state, queues = make_state(), make_queues(make_queue())
    submit(queues, make_workload("w"))
    queues.delay_workload("w", 50.0)
    found = cycle(state, queues, 10.0)
    assert keys(found) == []
    assert found.next_time == 50.0
    assert keys(cycle(state, queues, 50.0)) == ["w"]


def test_a_write_that_failed_gives_all_back():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8))
    submit(queues, make_workload("a"), make_workload("b", created=1.0))
    assert keys(run(state, queues)) == ["a"]
    queues.release_and_requeue(state, "a", 2.0, until=9.0)
    assert keys(run(state, queues, now=3.0)) == ["b"]
    assert state.assignments("a") == {}


def test_without_a_queue_there_is_no_quota():
    state, queues = make_state(1, 2), make_queues(ClusterQueue(name="none", unlimited=True))
    submit(queues, *(make_workload(f"w{i}", "none", created=float(i)) for i in range(3)))
    found = run(state, queues)
    assert keys(found) == ["w0", "w1"]
    assert reasons(found) == {"w2": Reason.DOES_NOT_FIT}


def test_equals_get_equals_whatever_the_order_of_submission():
    outcomes = set()
    for shift in range(5):
        state, queues = make_state(2, 2), make_queues(make_queue("a", 16), make_queue("b", 16))
        workloads = [make_workload(f"w{i}", "ab"[i % 2], 1 + i % 2, created=float(i // 3)) for i in range(10)]
        submit(queues, *(workloads[shift:] + workloads[:shift]))
        outcomes.add(tuple(keys(run(state, queues))))
    assert len(outcomes) == 1


@pytest.mark.parametrize(("levels", "values"), [((), ()), (("nosuch",), ("x",))])
def test_stored_slots_that_name_no_level_of_the_flavor_cost_nobody_a_cycle(levels, values):
    """Whoever may write its Workload's status stored that; the workload asks for more pods then."""
    state, queues = make_state(2, 2), make_queues(make_queue("q", 96))
    workload = make_workload("w", pod_sets=(make_pod_set(3, level=AUTO, policy=Policy.PREFERRED),))
    held = Assignment(pod_set="main", flavor="tas", levels=levels, requests={GPU: 8}, slices=(Slice(values, 1),))
    grant = AssumedAdmission("q", {"main": 1}, {"main": {GPU: "tas"}}, {("tas", GPU): 8}, (held,), {"main": {GPU: 8}})
    queues.restore_workload(state, workload, grant, 0.0)
    queues.wish("w", {"main": 3})
    submit(queues, make_workload("other"))
    found = cycle(state, queues, 1.0)
    assert keys(found) == ["other"]
    assert queues.entries["w"].refusal is not None
    assert queues.entries["w"].errors == 0, "nothing that nobody had foreseen"


@pytest.mark.parametrize(("queue", "amount"), [("q", 4), ("other", 8)], ids=["it is smaller", "in another queue"])
def test_who_waits_for_quota_gets_what_a_pod_without_a_workload_takes_no_more(queue, amount):
    state, queues = make_state(), make_queues(make_queue("q", 8), make_queue("other", 8))
    assert not queues.charge_pod("ns/left", Held("q", {("tas", GPU): 8}))
    submit(queues, make_workload("w", gpu=4))
    assert reasons(run(state, queues)) == {"w": Reason.INSUFFICIENT_QUOTA}
    assert not queues.charge_pod("ns/left", Held("q", {("tas", GPU): 8})), "the same again frees nothing"
    assert queues.charge_pod("ns/left", Held(queue, {("tas", GPU): amount}))
    assert keys(run(state, queues)) == ["w"]
