"""Pods that simply ask for so many devices of a class are counted by division, as the allocator counts node by node."""

import random

import pytest
from support.dra import DRIVER, ask, claim, device, device_class, hardware, resource_slice
from test_devices_of_nodes import ONE, Cluster, gpus, used

from engine.claims.allocate import prepare
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting import count as counting
from engine.claims.in_use import InUse, Use
from engine.claims.read.asks import claims_of, read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.claims.searching.requests import RequestContext
from engine.devices import kinds
from engine.devices.free_numbers import FreeNumbers

MINE = f'device.attributes["{DRIVER}"]'
CLASSES = {"c": device_class(), "big": device_class("big", f"{MINE}.big"), "bad": device_class("bad", f"{MINE}.no")}
SELECTORS = (f"{MINE}.index < 3", f"{MINE}.index >= 3", f"{MINE}.big", f"!{MINE}.big", f"{MINE}.index % 2 == 0")
TAINT = {"key": "k", "effect": "NoSchedule"}
TOLERATION = {"key": "k", "operator": "Exists"}


class Fleet(Cluster):
    """Nodes with devices of every sort; what the allocator counts on each is `alone`."""

    def __init__(self, dice, nodes=10):
        self.slices = {}
        self.uses = {}
        super().__init__([f"n{at}" for at in range(nodes)], devices=0)
        for body in CLASSES.values():
            self.cluster.devices.set_device_class(body["metadata"]["name"], read_class(body))
        for name in self.cluster._names():
            self.publish(name, dice)
            self.use(name, dice)

    def publish(self, name, dice):
        made = [odd(device(f"gpu-{at}", index=at, big=dice.random() < 0.5), dice) for at in range(dice.randint(0, 7))]
        self.slices[name] = resource_slice(*made, name=f"{name}-gpus", pool=name, nodeName=name)
        self.cluster.devices.set_slice(f"{name}-gpus", read_slice(self.slices[name]))

    def use(self, name, dice):
        taken = [f"gpu-{at}" for at in range(7) if dice.random() < 0.4]
        share = "share" if dice.random() < 0.1 else ""
        self.uses[name] = tuple([Use((DRIVER, name, one), share) for one in taken])
        self.cluster.devices.set_uses(name, self.uses[name])

    def alone(self, name, pod, *, bare=False):
        known = RequestContext({one: read_class(body) for one, body in CLASSES.items()}, Selectors(), Budget())
        prepared = prepare(hardware([self.slices[name]], node=name), claims_of(pod), known)
        in_use = InUse() if bare else InUse.from_uses(self.uses[name])
        return len(counting.count(prepared, in_use, kinds.MOST_PODS, Budget()).pods)


def odd(made, dice):
    """Some devices are tainted, shareable or of an amount."""
    if dice.random() < 0.15:
        made["taints"] = [TAINT]
    if dice.random() < 0.05:
        made |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "4"}}}
    return made


def requests(dice):
    made = []
    for at in range(dice.randint(1, 3)):
        one = ask(f"r{at}", dice.randint(1, 3), *dice.sample(SELECTORS, dice.choice([0, 0, 1])))
        one["exactly"]["deviceClassName"] = dice.choice(["c", "c", "c", "big", "big", "bad", "none"])
        if dice.random() < 0.3:
            one["exactly"]["tolerations"] = [TOLERATION]
        made.append(one)
    return made


def pods(dice):
    bodies = [claim(*requests(dice), name=f"claim-{at}") for at in range(dice.choice([1, 1, 2]))]
    return read_ask([(body["metadata"]["name"], "one", text_of(body["spec"])) for body in bodies])


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_the_allocator(seed):
    dice = random.Random(seed)
    fleet = Fleet(dice)
    for _ in range(25):
        pod, devices = pods(dice), fleet.cluster.devices
        assert fleet.fits(pod) == {name: fleet.alone(name, pod) for name in fleet.slices}
        emptied = dict(zip(fleet.slices, devices.count_if_unclaimed(pod).tolist(), strict=True))
        assert emptied == {name: fleet.alone(name, pod, bare=True) for name in fleet.slices}
        changed = dice.choice(list(fleet.slices))
        (fleet.publish if dice.random() < 0.2 else fleet.use)(changed, dice)


def asked(count, *selectors):
    return read_ask([("gpu", "one", text_of(claim(ask("gpu", count, *selectors))["spec"]))])


def test_another_number_of_devices_asks_no_node(monkeypatch):
    cluster = Cluster()
    cluster.cluster.devices.set_uses("ns/held", used("a", 1, 2, 3))
    looked = []
    monkeypatch.setattr(kinds.Kind, "count", lambda *_args, **_fields: looked.append(1))
    assert [cluster.fits(asked(count)) for count in (1, 2, 4, 5)] == [
        {"a": 1, "b": 4, "c": 4, "d": 4},
        {"a": 0, "b": 2, "c": 2, "d": 2},
        {"a": 0, "b": 1, "c": 1, "d": 1},
        {"a": 0, "b": 0, "c": 0, "d": 0},
    ]
    assert not looked


def test_nothing_is_looked_up_for_pods_of_forms_that_are_known():
    cluster = Cluster()
    assert cluster.fits(asked(1)) == {"a": 4, "b": 4, "c": 4, "d": 4}
    devices = cluster.cluster.devices
    assert devices.count_by_node(asked(2)).tolist() == devices.count_if_unclaimed(asked(2)).tolist() == [2, 2, 2, 2]
    assert devices._asked.kind(asked(2)).counted_view is None


@pytest.mark.parametrize("seed", range(3))
def test_counts_hold_while_others_come_to_wait_and_go(seed):
    dice, kinds_of_pods = random.Random(seed), [asked(count) for count in (1, 2, 3)]
    cluster, held, waiting = Cluster(), dict.fromkeys("abcd", 0), []
    devices = cluster.cluster.devices
    for turn in range(60):
        if waiting and dice.random() < 0.6:
            devices.waiting.add(waiting.pop(), ONE, -1)
        elif dice.random() < 0.3:
            waiting.append(dice.choice("abcd"))
            devices.waiting.add(waiting[-1], ONE, 1)
        name = dice.choice("abcd")
        held[name] = dice.randint(0, 4)
        devices.set_uses(f"ns/{name}", used(name, *range(held[name])))
        count = dice.randint(1, 3)
        left = {one: 4 - held[one] - waiting.count(one) for one in held}
        assert cluster.fits(kinds_of_pods[count - 1]) == {one: max(free, 0) // count for one, free in left.items()}, (
            turn
        )
        assert devices.count_if_unclaimed(kinds_of_pods[count - 1]).tolist() == [4 // count] * 4


def test_nothing_is_divided_in_vain_until_devices_change(monkeypatch):
    cluster, divided = Cluster(), []
    pods_by_division = FreeNumbers.count_pods
    monkeypatch.setattr(FreeNumbers, "count_pods", lambda *given: divided.append(1) or pods_by_division(*given))
    shared = [device(f"gpu-{at}") | {"allowMultipleAllocations": True} for at in range(4)]
    cluster.cluster.devices.set_slice("d-gpus", read_slice(resource_slice(*shared, pool="d", nodeName="d")))
    for held in range(4):
        cluster.cluster.devices.set_uses("ns/held", used("a", *range(held)))
        assert cluster.fits(ONE) == {"a": 4 - held, "b": 4, "c": 4, "d": kinds.MOST_PODS}
    assert len(divided) == 2  # by the kind, and once by what is known of the form
    cluster.cluster.devices.set_slice("d-gpus", gpus("d", 2))
    assert cluster.fits(ONE) == {"a": 1, "b": 4, "c": 4, "d": 2}
    assert len(divided) == 3


def test_a_node_on_which_others_wait_is_asked_by_itself():
    cluster = Cluster()
    cluster.cluster.devices.waiting.add("a", ONE, 3)
    assert cluster.fits(asked(2)) == {"a": 0, "b": 2, "c": 2, "d": 2}


def test_what_takes_too_many_steps_is_counted_state_by_state(monkeypatch):
    monkeypatch.setattr("engine.devices.device_counts.CALL_STEPS", 60)
    monkeypatch.setattr(kinds, "LOOK_STEPS", 60)
    cluster, pod, divided = Cluster(devices=0), asked(1, f"{MINE}.index < 2 || {MINE}.other < 0"), []
    pods_by_division = FreeNumbers.count_pods
    monkeypatch.setattr(
        FreeNumbers, "count_pods", lambda *given: divided.append(pods_by_division(*given)) or divided[-1]
    )
    for name, count in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        cluster.cluster.devices.set_slice(f"{name}-gpus", gpus(name, count, other=count))
    devices = cluster.cluster.devices
    while devices.counting.uncounted(pod):
        devices.counting.next_round()
    assert cluster.fits(pod) == {"a": 1, "b": 2, "c": 2, "d": 2}
    assert divided[0] is None
    assert not devices.is_uncounted(pod)
