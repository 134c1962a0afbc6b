"""What tenants who make ever new kinds of pods with claims cost: memory that is limited, and nobody else's turn."""

import random

import pytest
from support.dra import DRIVER, ask, claim, device, first, resource_slice
from test_devices_of_nodes import Cluster
from test_many_device_states import Fleet

from engine.claims.budget import CHARACTER_STEPS
from engine.claims.cel import selectors
from engine.claims.cel.compiler import compiled
from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.slices import read_slice
from engine.devices import device_counts, kinds, known_kinds
from engine.devices.known_kinds import KINDS_KEPT, KnownKinds
from engine.devices.turns import DeviceTurn

MINE = f'device.attributes["{DRIVER}"]'


def asked(*requests):
    return read_ask([("gpu", "one", text_of(claim(*requests)["spec"]))])


def greedy(number):
    """A kind that reads what is another of each device, and what no other kind reads."""
    own = ask("a", 1, f'{MINE}.uuid != "{number}" && !has({MINE}.x{number})')
    return asked(first("r", own, ask("b", 1, f"{MINE}.uuid != {MINE}.uuid")))


def singular(nodes):
    """Nodes of two devices, each of which has an attribute that no other has."""
    cluster = Cluster([f"n{number}" for number in range(nodes)], devices=0)
    for name in cluster.cluster._names():
        devices = [device(f"gpu-{at}", uuid=f"{name}-{at}") for at in range(2)]
        made = resource_slice(*devices, name=name, pool=name, nodeName=name)
        cluster.cluster.devices.set_slice(name, read_slice(made))
    return cluster


def remembered(cluster):
    known = cluster.cluster.devices._asked
    views = {kind.view for kind in known._kinds.values()}
    return sum(one.remembered_answers for one in (*known._kinds.values(), *known.free.counters, *views))


def test_what_kinds_remember_of_single_nodes_is_limited_and_what_is_known_stays(monkeypatch):
    monkeypatch.setattr(known_kinds, "MOST_REMEMBERED", 200)
    cluster = singular(nodes=20)
    counting, honest = cluster.cluster.devices.counting, asked(first("r", ask("a"), ask("b")))
    assert counting.uncounted(honest, "honest") == 0
    for number in range(20):
        assert counting.uncounted(greedy(number), "greedy") == 0
    assert remembered(cluster) > 200
    counting.next_round()
    assert remembered(cluster) <= 200
    assert cluster.cluster.devices._asked.kind(honest).remembered_answers, "it is light, and forgets nothing"
    monkeypatch.setattr(kinds.Kind, "count", lambda *given, **more: pytest.fail("it is counted again"))
    for number in range(20):
        assert set(cluster.cluster.devices.count_by_node(greedy(number)).tolist()) == {2}
    monkeypatch.undo()
    cluster.cluster.devices.set_uses("ns/c", (Use((DRIVER, "n3", "gpu-0")),))
    assert cluster.fits(greedy(5)) == {f"n{at}": 1 if at == 3 else 2 for at in range(20)}


def test_a_selector_that_reads_many_attributes_weighs_no_more_than_the_device():
    many = " || ".join(f"has({MINE}.a{number})" for number in range(150))
    cluster, pod = singular(nodes=8), asked(ask("r", 1, f"{many} || true"))
    assert set(cluster.fits(pod).values()) == {2}
    kind = cluster.cluster.devices._asked.kind(pod)
    assert kind.view.reads <= 16
    several = asked(*(ask(f"r{at}", 1, f"has({MINE}.a{at}) || {MINE}.uuid != ''") for at in range(20)))
    assert cluster.cluster.devices._asked.kind(several).view.reads <= 16


def test_who_makes_ever_new_kinds_throws_out_his_own():
    known = KnownKinds()
    honest = [known.kind(asked(ask("r", number + 1)), "honest") for number in range(3)]
    for number in range(3 * KINDS_KEPT):
        known.kind(greedy(number), "greedy")
    assert [known.kind(asked(ask("r", number + 1))) for number in range(3)] == honest
    assert len(known._kinds) == KINDS_KEPT


@pytest.fixture
def short(monkeypatch):
    """One call counts a node or two."""
    monkeypatch.setattr(device_counts, "CALL_STEPS", 200)
    monkeypatch.setattr(kinds, "LOOK_STEPS", 200)


def fresh(number):
    return asked(ask("r", 1, f"{MINE}.big || {number} != 0"))


@pytest.mark.parametrize("tenant", ["greedy", "honest"])
def test_what_needs_several_rounds_is_counted_while_somebody_makes_ever_new_kinds(short, tenant):
    """Also if it is the same namespace that makes them."""
    fleet, pod = Fleet(), asked(ask())
    counting, left, rounds = fleet.cluster.devices.counting, 1, 0
    while left:
        for number in range(3):
            counting.uncounted(fresh(3 * rounds + number), tenant)
        left = counting.uncounted(pod, "honest")
        counting.next_round()
        rounds += 1
        assert rounds < 60, "it is never counted"
    assert rounds > 4
    assert sum(fleet.fits(pod).values()) > 0


def test_namespaces_take_turns_however_many_kinds_each_has(short):
    fleet, pods = Fleet(), {name: [fresh(1000 * at + number) for number in range(8)] for at, name in enumerate("abc")}
    counting, turns = fleet.cluster.devices.counting, []
    for _ in range(9):
        for name, asks in pods.items():
            for one in asks[: 1 if name == "b" else 8]:
                counting.uncounted(one, name)
        counting.next_round()
        turns.append(next((name for name, asks in pods.items() if counting._turn in asks), ""))
    assert turns == [*"abc"] * 3


def test_what_is_compiled_again_is_charged_and_ends_no_search(monkeypatch):
    """Others may have thrown it out: the kind is not given up for that."""
    monkeypatch.setattr(kinds, "LOOK_STEPS", 1000)
    monkeypatch.setattr(kinds, "MOST_GIVEN_UP", 1)
    cluster = singular(nodes=4)
    pod = asked(ask("r", 1, f"{MINE}.uuid != ''" + " " * 2000))
    assert set(cluster.fits(pod).values()) == {2}
    known = cluster.cluster.devices._asked
    known._selectors._codes.clear()
    known._selectors._answers.clear()
    known.kind(pod).forget_answers()
    spent = kinds.Budget(100_000)
    found = known.kind(pod).count(cluster.cluster.devices._states_of_node("n0").now, (), spent)
    assert found == 2
    assert not known.is_uncounted(pod)
    assert 100_000 - spent.left >= CHARACTER_STEPS * 2000


def test_who_waits_on_a_node_is_compiled_at_the_cost_of_who_asks(monkeypatch):
    made = []
    monkeypatch.setattr(selectors, "compiled", lambda *given: made.append(given) or compiled(*given))
    cluster = singular(nodes=2)
    devices, honest = cluster.cluster.devices, asked(ask())
    for number in range(12):
        devices.waiting.add("n0", asked(ask("r", 1, f"{MINE}.uuid != '{number}'" + " " * 9000)), 1)
    devices.count_by_node(honest)
    assert len(made) <= 3, "50,000 steps are two of them, and one that is begun"


def test_a_turn_compiles_no_more_than_its_steps(monkeypatch):
    made = []
    monkeypatch.setattr(selectors, "compiled", lambda *given: made.append(given) or compiled(*given))
    cluster, pods = singular(nodes=2), [asked(ask("r", 1, f"{at} != 0" + " " * 9000)) for at in range(1, 13)]
    assert cluster.cluster.devices.turn("n0", pods[0], {"n0": dict.fromkeys(pods[1:], 1)}) is DeviceTurn.NOW
    assert len(made) <= 3


def test_words_about_a_node_take_few_steps(monkeypatch):
    spent = []
    spend = kinds.Budget.spend
    monkeypatch.setattr(kinds.Budget, "spend", lambda self, steps: spent.append(steps) or spend(self, steps))
    dice = random.Random(1)
    cluster = Cluster(["n"], devices=0)
    devices = [device(f"g{at}", at=at, odd=dice.random() < 0.5) for at in range(60)]
    cluster.cluster.devices.set_slice("n", read_slice(resource_slice(*devices, name="n", pool="n", nodeName="n")))
    constraint = [{"requests": [], "distinctAttribute": f"{DRIVER}/odd"}]
    body = claim(*(ask(f"r{at}", 3) for at in range(4)), constraints=constraint)
    told = cluster.cluster.devices.explain_devices("n", read_ask([("gpu", "one", text_of(body["spec"]))]))
    assert told
    assert len(spent) <= 6_000


def test_who_makes_ever_new_costly_kinds_leaves_others_the_steps_for_their_own(monkeypatch):
    """All that others ask for is counted in the round in which they ask, but for the first."""
    monkeypatch.setattr(device_counts, "CALL_STEPS", 9000)
    cluster = singular(nodes=8)
    counting, left = cluster.cluster.devices.counting, []
    for a_round in range(6):
        for number in range(4):
            counting.uncounted(asked(ask("r", 1, f"{4 * a_round + number} != 1" + " " * 2000)), "greedy")
        honest = [asked(ask("r", 1, f"{100 + 3 * a_round + number} != 1")) for number in range(3)]
        left.append([bool(counting.uncounted(one, "honest")) for one in honest])
        counting.next_round()
    assert left[0] == [True] * 3
    assert not any(map(any, left[2:]))
