"""What becomes of one that holds a place: it grows, others leave for it, and it moves."""

from types import SimpleNamespace

import msgspec
from support.engine_factories import BLOCK, HOST, RACK, ask, make_node, make_pod_set, make_state, placed, racks
from support.queue_factories import make_pod_set as pod_set_of
from support.queue_factories import make_queue, make_queues, make_workload, run, submit
from support.queue_factories import make_state as queued_state
from support.sentences.golden import Golden

from crds import topology_labels
from crds.device_settings import DeviceClassMapping, ambiguous
from engine.cluster.assignment import Assignment
from engine.model import Policy, SliceLayer, TopologyRequest
from engine.placement.place import extend, replace
from engine.placement.relocate import away, relocate
from engine.reservation_key import ReservationKey
from queueing import moves
from queueing.cycle import elastic, growth
from queueing.model import Preemption, Stop, Within
from queueing.queues.entry import Phase

GOLDEN = Golden("changing")
case = GOLDEN.case
LOWER = Preemption(within=Within.LOWER)

GOLDEN.section("more pods for one that runs")


def running(preemption=LOWER, **more):
    """A service with one pod in a queue of 64 GPUs, on four hosts of a rack; and a batch job of lower priority."""
    state, queues = queued_state(1, 4), make_queues(make_queue("q", 64, preemption=preemption))
    submit(queues, make_workload("ns/service", count=2, level="rack", priority=10, **more))
    run(state, queues)
    submit(queues, make_workload("ns/batch", count=2, created=1.0))
    run(state, queues)
    return state, queues


def growing():
    """The service is to have two more pods once the batch job is gone."""
    state, queues = running()
    queues.wish("ns/service", {"main": 4})
    run(state, queues, now=2.0)
    return state, queues


def _as(part, **changes):
    """An assignment with these fields changed."""
    fields = ("pod_set", "flavor", "levels", "requests", "slices", "source")
    return Assignment(**{name: getattr(part, name) for name in fields} | changes)


def settled(state, queues):
    return growth.settle_growth(state, queues, "ns/service")


@case
def one_that_is_evicted_before_it_grows():
    state, queues = growing()
    queues.holders.evicting["ns/service"] = queues.holders.evicting["ns/batch"]
    return settled(state, queues)


@case
def one_that_wants_fewer_pods_after_all():
    state, queues = growing()
    queues.wish("ns/service", None)
    return settled(state, queues)


@case
def one_whose_room_is_lost_before_it_grows():
    state, queues = growing()
    for piece in state.assignments(ReservationKey.for_growth("ns/service"))["main"].slices:
        for name, _ in piece.nodes:
            state.remove_node(name)
    queues.release_and_requeue(state, "ns/batch", 3.0, until=50.0)
    return settled(state, queues)


@case
def one_whose_flavor_changes_before_it_grows():
    state, queues = growing()
    queues.release_and_requeue(state, "ns/batch", 3.0, until=50.0)
    held = state.assignments("ns/service")["main"]
    state.reserve("ns/service", [_as(held, levels=(BLOCK, *held.levels))])
    return settled(state, queues)


@case
def a_pod_set_that_had_no_pods():
    state, queues = running()
    entry = queues.entries["ns/service"]
    entry.grant = msgspec.structs.replace(entry.grant, flavors={"main": {}})
    more = (*entry.workload.pod_sets, pod_set_of(0, name="eval"))
    submit(queues, msgspec.structs.replace(entry.workload, pod_sets=more))
    return elastic.resize(state, queues, "ns/service", {"eval": 1})


@case
def slices_that_would_not_be_whole():
    state, pairs = racks({"b1/r1": [8], "b1/r2": [8]}), (SliceLayer(level=HOST, size=2),)
    state.reserve("w", placed(ask(state, sliced(4, pairs))).assignments)
    return extend(state, "w", sliced(6, pairs), 2)


@case
def the_rest_of_a_slice_without_room():
    state = racks({"b1/r1": [2, 2], "b1/r2": [2, 2]})
    state.reserve("w", placed(ask(state, sliced(8))).assignments)
    return replace(state, "w", sliced(8), {"n0"})


@case
def a_flavor_with_other_levels_than_before():
    state = racks({"b1/r1": [8]})
    held = placed(ask(state, make_pod_set(2))).assignments[0]
    state.reserve("w", [_as(held, levels=("cloud/row", *held.levels[1:]))])
    return extend(state, "w", make_pod_set(3), 1)


@case
def pods_that_ask_for_what_has_no_flavor():
    state, queues = running()
    entry = queues.entries["ns/service"]
    entry.grant = msgspec.structs.replace(entry.grant, flavors={"main": {"cpu": "tas"}}, asks={"main": {"cpu": 1000}})
    return elastic.resize(state, queues, "ns/service", {"main": 3})


def sliced(count, inner=()):
    topology = TopologyRequest(policy=Policy.REQUIRED, level=BLOCK, slices=(SliceLayer(level=RACK, size=4), *inner))
    return msgspec.structs.replace(make_pod_set(count), topology=topology)


GOLDEN.section("room that others leave for one")


def awaited(nominal=16):
    """One of higher priority waits for the batch job to be gone."""
    state, queues = queued_state(1, 2), make_queues(make_queue("q", nominal, preemption=LOWER))
    submit(queues, make_workload("ns/batch", count=2, level="rack"))
    run(state, queues)
    submit(queues, make_workload("ns/urgent", count=2, level="rack", priority=5, created=1.0))
    run(state, queues, now=2.0)
    assert queues.entries["ns/urgent"].phase is Phase.NOMINATED
    return state, queues


def given_up(state, queues):
    queues.release_and_requeue(state, "ns/batch", 3.0, until=50.0)
    return run(state, queues, now=3.0).given_up[0].message


@case
def a_node_that_is_lost_before_one_gets_it():
    state, queues = awaited()
    state.remove_node("tas-0")
    return given_up(state, queues)


@case
def quota_that_is_lowered_before_one_gets_it():
    state, queues = awaited()
    queues.set_cluster_queue(make_queue("q", 8, preemption=LOWER))
    return given_up(state, queues)


@case
def a_queue_that_is_drained():
    state, queues = running()
    queues.set_cluster_queue(make_queue("q", 64, preemption=LOWER, stop=Stop.DRAIN))
    return run(state, queues, now=4.0).evict[0].message


GOLDEN.section("one that is not moved now")


def not_moved(**changes):
    """What hinders a move of the service, beside these changes of what its queues say."""
    _, queues = running()
    queues.fresh.clear()
    fields = ("entries", "holders", "growing", "fresh", "storing", "spared", "run_times")
    return moves.why_not_moved(
        SimpleNamespace(**{name: getattr(queues, name) for name in fields} | changes), "ns/service"
    )


def holders(**changes):
    """Holders none of whom is protected or goes, beside these changes."""
    return SimpleNamespace(**{"non_preemptible": {}, "evicting": {}, "losing": {}} | changes)


for _name, _changes in (
    ("one that is not admitted", {"entries": {}}),
    ("one that is nobodys victim", {"holders": holders(non_preemptible={"ns/service": None})}),
    ("one that goes", {"holders": holders(evicting={"ns/service"})}),
    ("one that grows", {"growing": {"ns/service": None}}),
    ("one that is being stored", {"fresh": {"ns/service"}}),
    ("one that a budget spared", {"spared": {"ns/service": 0.0}}),
    ("one that has to run for longer", {"run_times": SimpleNamespace(now=4.0, last_end=lambda _: 604.0)}),
):
    GOLDEN.add(_name, lambda changes=_changes: not_moved(**changes))


@case
def one_that_would_be_spread_more():
    state = racks({"b1/r1": [8], "b1/r2": [4], "b1/r3": [4]})
    pods = make_pod_set(8, Policy.PREFERRED)
    state.reserve("w", placed(ask(state, pods)).assignments)
    (piece,) = state.assignments("w")["main"].slices
    return relocate(state, "w", pods, {piece.values: 8})


@case
def one_in_several_flavors():
    state = make_state([make_node("n0")])
    pods, other = make_pod_set(1), make_pod_set(1, name="other")
    held = placed(ask(state, pods, other)).assignments
    state.reserve("w", [held[0], _as(held[1], flavor="plain")])
    return away(state, "w", (pods, other))


GOLDEN.section("labels of levels, and settings of devices")


def mapping(name, *classes):
    return DeviceClassMapping(name=name, device_class_names=classes)


@case
def a_resource_that_nodes_have():
    try:
        return mapping("cpu", "gpu")
    except ValueError as error:
        return str(error).splitlines()[2].strip().partition(" [")[0]


@case
def two_mappings_of_one_name():
    return ambiguous([mapping("gpus", "a"), mapping("gpus", "b")])


@case
def two_mappings_of_one_class():
    return ambiguous([mapping("gpus", "a"), mapping("more", "a")])


for _name, _text in (
    ("a fabric with a dead cable", topology_labels.lopsided_in_words("tier-1", "tier-0", 3, 1)),
    (
        "a label that a tool gave up",
        topology_labels.superseded_in_words("network.topology.nvidia.com/leaf"),
    ),
):
    GOLDEN.add(_name, lambda text=_text: text)
