"""Fleets on which devices are in use in so many ways that one call does not count all nodes; slices and lost nodes."""

import random

import pytest
from support import queue_factories as queues_of
from support.dra import DRIVER, ask, claim, device, first, fitting, given, resource_slice, taken
from test_devices_of_nodes import ANYWHERE, ONE, RACK, Cluster, on, used

from engine.claims.cel import selectors
from engine.claims.cel.compiler import compiled
from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.slices import read_slice
from engine.devices import device_counts, kinds
from engine.model import HOSTNAME_LABEL, PodSet, Policy, SliceLayer, TopologyRequest
from engine.placement.place import replace
from engine.reasons import Reason
from engine.results import Refusal
from queueing.cycle.cycle import cycle
from queueing.model import ClusterQueue, FlavorQuotas, Preemption, Quota, ResourceGroup, Within

MINE = f'device.attributes["{DRIVER}"]'
TAINT = {"key": "k", "effect": "NoSchedule"}
PARTS = [f"{gpu}-{part}" for gpu in range(2) for part in range(7)]
ANY = claim(ask())
PAIR = claim(ask("one"), ask("other"))
FIRST = claim(first("r", ask("big", 1, f'device.attributes["{DRIVER}"].big'), ask("any")))
GROUPED = TopologyRequest(policy=Policy.REQUIRED, level="rack", slices=(SliceLayer(level=HOSTNAME_LABEL, size=2),))


def partitions(node="n", pool="p"):
    """Two GPUs of seven parts each, or whole, which takes all counters."""
    sets = [{"name": f"gpu-{gpu}", "counters": {"part": {"value": "7"}}} for gpu in range(2)]
    made = resource_slice(name=f"{node}-sets", pool=pool, slices=2, nodeName=node, sharedCounters=sets)
    devices = [
        device(f"{gpu}-{part}", big=part == "whole")
        | {"consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": {"part": {"value": value}}}]}
        for gpu in range(2)
        for part, value in [("whole", "7"), *[(number, "1") for number in range(7)]]
    ]
    return [made, resource_slice(*devices, name=f"{node}-devices", pool=pool, slices=2, nodeName=node)]


def asked(body=ANY):
    return read_ask([("gpu", "one", text_of(body["spec"]))])


class Fleet(Cluster):
    """Nodes of partitions, of which each has others in use; ``used`` has these by node."""

    def __init__(self, nodes=12):
        super().__init__([f"n{number}" for number in range(nodes)], devices=0)
        dice = random.Random(3)
        self.used = {name: [part for part in PARTS if dice.random() < 0.4] for name in self.cluster._names()}
        for name, parts in self.used.items():
            for one in partitions(name, name):
                self.cluster.devices.set_slice(one["metadata"]["name"], read_slice(one))
            self.cluster.devices.set_uses(name, tuple(Use((DRIVER, name, part)) for part in parts))


@pytest.fixture
def short(monkeypatch):
    """One call counts a node or two."""
    monkeypatch.setattr(device_counts, "CALL_STEPS", 200)
    monkeypatch.setattr(kinds, "LOOK_STEPS", 200)


def test_what_one_call_does_not_come_to_is_counted_by_the_next(short):
    fleet, pod = Fleet(), asked()
    devices = fleet.cluster.devices
    left = [devices.counting.uncounted(pod)]
    while left[-1]:
        assert not devices.is_uncounted(pod)
        assert devices.counting.next_round()
        left.append(devices.counting.uncounted(pod))
    assert len(left) > 4
    assert left == sorted(left, reverse=True)
    assert not devices.counting.next_round()
    alone = {name: fitting(partitions(), ANY, in_use=taken(*parts)) for name, parts in fleet.used.items()}
    assert fleet.fits(pod) == alone
    assert set(devices.count_if_unclaimed(pod).tolist()) == {2}


def test_one_that_waits_until_its_devices_are_counted_is_placed_without_any_event(short):
    quotas = (FlavorQuotas(flavor="f", resources={"cpu": Quota(nominal=100_000)}),)
    queue = ClusterQueue(name="q", groups=(ResourceGroup(resources=("cpu",), flavors=quotas),))
    fleet, queues = Fleet(), queues_of.make_queues(queue)
    pod_set = PodSet(name="main", count=12, requests={"cpu": 1000}, topology=ANYWHERE, devices=asked())
    queues_of.submit(queues, queues_of.make_workload("ns/w", pod_sets=(pod_set,)))
    made = queues_of.run(fleet, queues)
    assert queues_of.keys(made) == ["ns/w"]
    assert made.waiting[0].message.startswith("its devices are being counted: it is not known yet")
    assert sum(on(made.admitted[0].grant).values()) == 12


# By what is counted so far, one would have somebody evicted, and the other would never fit.
@pytest.mark.parametrize("count", [20, 23])
def test_growth_waits_until_its_devices_are_counted(short, count):
    quotas = (FlavorQuotas(flavor="f", resources={"cpu": Quota(nominal=100_000)}),)
    rules = Preemption(within=Within.LOWER)
    queue = ClusterQueue(name="q", groups=(ResourceGroup(resources=("cpu",), flavors=quotas),), preemption=rules)
    fleet, queues = Fleet(), queues_of.make_queues(queue)
    pod_set = PodSet(name="main", count=1, requests={"cpu": 1000}, topology=ANYWHERE, devices=asked())
    queues_of.submit(queues, queues_of.make_workload("ns/low", pod_sets=(pod_set,)))
    assert queues_of.keys(queues_of.run(fleet, queues)) == ["ns/low"]
    queues_of.submit(queues, queues_of.make_workload("ns/w", priority=1, pod_sets=(pod_set,)))
    assert queues_of.keys(queues_of.run(fleet, queues)) == ["ns/w"]
    for node, parts in fleet.used.items():  # a part ends on each node: all are counted anew
        fleet.cluster.devices.set_uses(node, tuple(Use((DRIVER, node, part)) for part in parts[1:]))
    queues.wish("ns/w", {"main": count})
    made = [cycle(fleet, queues, 2.0)]
    assert queues.entries["ns/w"].refusal.message.startswith("its devices are being counted: it is not known yet")
    while made[-1].more:
        made.append(cycle(fleet, queues, 2.0))
    assert not any(one.preempting for one in made)
    assert [one.key for each in made for one in each.resized] == ["ns/w"]


def test_long_expressions_are_compiled_a_few_a_round_and_everybody_has_a_turn(monkeypatch):
    monkeypatch.setattr(device_counts, "CALL_STEPS", 4000)
    made = []
    monkeypatch.setattr(selectors, "compiled", lambda *given: made.append(given) or compiled(*given))
    fleet, pods = Fleet(nodes=2), [asked(claim(ask("r", 1, longer_by(number)))) for number in range(20)]
    counting, left, most = fleet.cluster.devices.counting, pods, 0
    for number in range(len(pods) + 1):
        before = len(made)
        left = [pod for pod in left if counting.uncounted(pod)]
        assert number or left, "they are not compiled in one round"
        if not counting.next_round():
            break
        most = max(most, len(made) - before)
    assert left == []
    assert most <= 4, "two by the budget of those who are new, and two by that of whose turn it is"
    assert len(made) == len(pods)
    assert all(fleet.fits(pod) == fleet.fits(asked()) for pod in pods)


def longer_by(number):
    """An expression of some 600 characters that holds of all devices."""
    return " && ".join([f"{MINE}.big == {MINE}.big"] * 6) + f" && {1000 + number} > 0" + " " * 300


def test_a_round_is_over_where_nobody_asks_any_more(short):
    fleet, pod = Fleet(), asked()
    counting = fleet.cluster.devices.counting
    assert counting.uncounted(pod)
    assert counting.next_round()
    assert not counting.unfinished
    assert not counting.next_round()


@pytest.mark.parametrize("body", [ANY, PAIR, FIRST], ids=["any", "pair", "first"])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_that_goes_on_finds_what_one_from_the_start_would(seed, body):
    """One pod after the other, each in a search of its own, beside what those before it have."""
    dice = random.Random(seed)
    before = [part for part in PARTS if dice.random() < 0.3]
    names, pods = list(before), 0
    while " " in (found := f"{given(partitions(), body, in_use=taken(*names))} ") and "=" in found:
        names += [one.partition("=")[2] for one in found.split()]
        pods += 1
    assert pods > 1
    assert fitting(partitions(), body, in_use=taken(*before)) == pods


@pytest.mark.parametrize("seed", range(4))
def test_numbers_alone_decide_where_pods_take_any_of_some_devices(seed):
    """Also where a device is of no use: tainted, of another kind, or in use."""
    dice = random.Random(seed)
    devices = [
        device(f"d{at}", kind=dice.choice("xy"), **({"taints": [TAINT]} if dice.random() < 0.2 else {}))
        for at in range(12)
    ]
    body = claim(*(ask(kind, count, f'{MINE}.kind == "{kind}"') for kind, count in (("x", 1), ("y", 2))))
    cluster = Cluster(("a",), devices=0)
    slices = [resource_slice(*devices, name="a", pool="a", nodeName="a")]
    cluster.cluster.devices.set_slice("a", read_slice(slices[0]))
    for _ in range(6):
        names = [f"d{at}" for at in range(12) if dice.random() < 0.3]
        cluster.cluster.devices.set_uses("ns/c", tuple(Use((DRIVER, "a", name)) for name in names))
        alone = fitting(slices, body, in_use=taken(*names, pool="a"), node="a")
        assert cluster.fits(asked(body)) == {"a": alone}


def test_slices_are_whole_in_devices_too():
    """Three of four devices are free on each node: one slice of two pods a node, and no third."""
    cluster = Cluster()
    for name in "abcd":
        cluster.cluster.devices.set_uses(f"ns/{name}", used(name, 0))
    assert on(cluster.place(4, topology=GROUPED)) == {"a": 2, "b": 2}
    assert cluster.place(6, topology=GROUPED).reason is Reason.DOES_NOT_FIT


def test_a_preferred_level_is_left_where_devices_are_short():
    cluster = Cluster()
    cluster.cluster.devices.set_uses("ns/used", used("a", 0, 1, 2))
    preferred = TopologyRequest(policy=Policy.PREFERRED, level="rack")
    assert on(cluster.place(8, topology=preferred)) == {"c": 4, "d": 4}
    assert sum(on(cluster.place(10, topology=preferred)).values()) == 10


def test_who_lost_a_node_gets_devices_in_its_rack_or_nothing():
    cluster = Cluster()
    assert cluster.hold(4, topology=RACK, key="ns/w") == {"a": 4}
    pod_set = PodSet(name="main", count=4, requests={"cpu": 1000}, topology=RACK, devices=ONE)
    cluster.cluster.devices.set_uses("ns/used", used("b", 0))
    assert isinstance(replace(cluster, "ns/w", pod_set, {"a"}), Refusal)
    cluster.cluster.devices.set_uses("ns/used", ())
    moved = replace(cluster, "ns/w", pod_set, {"a"})
    assert {name: count for part in moved.slices for name, count in part.nodes} == {"b": 4}


def test_what_others_who_wait_ask_for_gives_nobody_up(monkeypatch):
    monkeypatch.setattr(kinds, "LOOK_STEPS", 1000)
    monkeypatch.setattr(kinds, "BESIDE_STEPS", 1000, raising=False)
    fleet = Cluster(["n0", "n1", "n2", "n3"], devices=0)
    devices, dice = fleet.cluster.devices, random.Random(0)
    for name in fleet.cluster._names():
        made = resource_slice(*(device(f"g{at}", at=at) for at in range(16)), name=name, pool=name, nodeName=name)
        devices.set_slice(name, read_slice(made))
    some = [sorted(dice.sample(range(16), 15)) for _ in range(10)]
    theirs = [asked(claim(ask("r", 1, f"{MINE}.at in {at}"))) for at in some]
    honest, waiting = asked(), []
    for place, name in enumerate(("n0", "n1")):
        for one in theirs[place:]:
            if devices.count_by_node(one)[place]:
                devices.waiting.add(name, one, 1)
                waiting.append((name, one))
    assert len(waiting) > 8
    assert not devices.is_uncounted(honest)
    before = devices.count_by_node(honest).tolist()
    assert before[2:] == [16, 16]
    assert max(before[:2]) <= 16 - len(waiting) // 2
    for name, one in waiting:
        devices.waiting.add(name, one, -1)
    assert devices.count_by_node(honest).tolist() == [16, 16, 16, 16]
