"""Victims by the devices that they free: with their claims, which are deallocated later than pods end."""

import random
from itertools import combinations

import msgspec
import pytest
from support.dra import DRIVER, ask, claim, device, device_class, resource_slice
from support.queue_factories import HOST, make_queue, make_queues, make_state, make_workload, run, submit

from engine.claims.asks import ExtendedRequest
from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.model import Pod
from engine.reasons import Reason
from engine.results import Refusal
from queueing.cycle.cycle import cycle
from queueing.model import OutsidePod, PlainFlavor, Preemption, Rules, Within
from queueing.queues.flavor_assigner import put

ONE = read_ask([("gpu", "one", text_of(claim(ask())["spec"]))])


def asking(key, count=1, devices=ONE, **more):
    """A workload whose pods have one claim each."""
    made = make_workload(key, count=count, gpu=1, **more)
    sets = tuple(msgspec.structs.replace(one, devices=devices) for one in made.pod_sets)
    return msgspec.structs.replace(made, pod_sets=sets)


@pytest.fixture
def cluster():
    """One node with two devices of claims, and eight of others."""
    state, queues = make_state(1, 1), make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    state.cluster.devices.set_device_class("c", read_class(device_class()))
    slices = resource_slice(device("a"), device("b"), name="s", pool="p", nodeName="tas-0")
    state.cluster.devices.set_slice("s", read_slice(slices))
    return state, queues


def hold(state, queues, key, *names, node="tas-0", pool="p", shared=False):
    """Pods of a workload run there, and their claims have these devices; or one claim of all of them has."""
    pods = [f"ns/{key}-{name}" for name in names]
    for pod in pods:
        state.set_pod(Pod(key=pod, node=node, requests={"nvidia.com/gpu": 1}, claim=(key, "main")))
        queues.bind(pod, key)
    uses = [Use((DRIVER, pool, name)) for name in names]
    if shared:
        state.cluster.devices.set_uses(f"ns/{key}", tuple(uses), frozenset(pods))
        return
    for pod, use in zip(pods, uses, strict=True):
        state.cluster.devices.set_uses(pod, (use,), frozenset([pod]))


def end(state, queues, key, *names):
    """The pods of a workload are gone, and what it held is given back; its claims are as they were."""
    for name in names:
        pod = f"ns/{key}-{name}"
        state.remove_pod(pod)
        queues.unbind(pod)
        state.cluster.devices.pod_ended(pod)
    queues.release_workload(state, key)


def deallocate(state, queues, *claims):
    for one in claims:
        state.cluster.devices.set_uses(f"ns/{one}", ())
    queues.pending.room_freed(["tas"])


@pytest.fixture
def full(cluster):
    """A workload of two pods has both devices, and a more important one wants one of them."""
    state, queues = cluster
    submit(queues, asking("low", 2))
    run(state, queues)
    hold(state, queues, "low", "a", "b")
    submit(queues, asking("high", priority=5, created=1.0))
    return state, queues


def victims(found):
    return [[victim.key for victim in one.victims] for one in found.preempting]


def test_a_workload_whose_claims_have_the_devices_goes(full):
    state, queues = full
    assert victims(run(state, queues)) == [["low"]]
    assert queues.holders.promised() == ["high"]


def test_devices_that_no_pod_of_a_victim_has_are_not_made_free(full):
    state, queues = full
    for name in ("a", "b"):
        state.cluster.devices.set_uses(f"ns/low-{name}", (Use((DRIVER, "p", name)),))
    found = run(state, queues)
    assert (victims(found), found.waiting[0].reason) == ([], Reason.DOES_NOT_FIT)
    assert "devices of its claims" in found.waiting[0].message


def test_a_claim_that_others_have_too_is_not_made_free(full):
    state, queues = full
    users = frozenset(["ns/low-a", "ns/other"])
    for name in ("a", "b"):
        state.cluster.devices.set_uses(f"ns/low-{name}", (Use((DRIVER, "p", name)),), users)
    assert victims(run(state, queues)) == []


def test_all_who_share_a_claim_go_for_it(cluster):
    state, queues = cluster
    for key in ("one", "two"):
        submit(queues, asking(key))
        run(state, queues)
        hold(state, queues, key, "a" if key == "one" else "b")
        deallocate(state, queues, f"{key}-a", f"{key}-b")
    users = frozenset(["ns/one-a", "ns/two-b"])
    state.cluster.devices.set_uses("ns/shared", (Use((DRIVER, "p", "a")), Use((DRIVER, "p", "b"))), users)
    submit(queues, asking("high", priority=5, created=1.0))
    assert victims(run(state, queues)) == [["one", "two"]]


def test_it_is_admitted_when_the_claims_are_deallocated_and_not_when_pods_are_gone(full):
    state, queues = full
    run(state, queues)
    end(state, queues, "low", "a", "b")
    found = run(state, queues, now=2.0)
    assert (found.admitted, found.waiting, found.given_up, found.next_time) == ([], [], [], 12.0)
    found = run(state, queues, now=12.0)
    assert [(one.key, one.reason) for one in found.waiting] == [("high", Reason.CLAIMS_NOT_DEALLOCATED)]
    assert found.waiting[0].message == (
        "its victims are gone, but ResourceClaims ns/low-a, ns/low-b still have devices that it needs: it continues "
        "once kube-controller-manager deallocates them"
    )
    assert run(state, queues, now=13.0).waiting == []
    deallocate(state, queues, "low-b")
    found = run(state, queues, now=14.0)
    assert [(one.key, one.preempted) for one in found.admitted] == [("high", True)]


def test_others_get_nothing_of_what_is_kept_until_then(full):
    state, queues = full
    run(state, queues)
    end(state, queues, "low", "a", "b")
    submit(queues, asking("late", created=2.0))
    assert run(state, queues, now=3.0).admitted == []
    deallocate(state, queues, "low-a")
    assert [one.key for one in run(state, queues, now=4.0).admitted] == ["high"]
    deallocate(state, queues, "low-b")
    assert [one.key for one in run(state, queues, now=5.0).admitted] == ["late"]


def test_it_looks_anew_where_others_took_the_devices_meanwhile(full):
    state, queues = full
    run(state, queues)
    end(state, queues, "low", "a", "b")
    deallocate(state, queues, "low-a", "low-b")
    for name in ("a", "b"):
        state.cluster.devices.set_uses(f"x/{name}", (Use((DRIVER, "p", name)),), frozenset(["x/pod"]))
    found = run(state, queues, now=3.0)
    assert [one.message for one in found.given_up] == [
        "the devices that were kept for it on node tas-0 are gone, or others have them now; it waits again"
    ]


def test_nobody_goes_for_devices_that_come_free_by_themselves(full):
    state, queues = full
    submit(queues, make_workload("plain", gpu=1))
    end(state, queues, "low", "a", "b")
    found = run(state, queues)
    assert (victims(found), [one.key for one in found.waiting]) == ([], ["high"])
    deallocate(state, queues, "low-a")
    assert [one.key for one in run(state, queues).admitted] == ["high"]


def test_who_has_the_claim_that_the_preemptor_names_stays(full):
    state, queues = full
    ours = read_ask([("gpu", "one", text_of(claim(ask())["spec"]))], (), ("ns/mine",))
    state.cluster.devices.set_uses("ns/mine", (Use((DRIVER, "q", "x")),), frozenset(["ns/low-a"]))
    submit(queues, asking("other", priority=7, devices=ours, created=2.0))
    found = run(state, queues)
    assert [one.key for one in found.preempting] == ["high"]
    assert "other" in [one.key for one in found.waiting]


def test_pods_that_no_queue_admitted_give_back_no_devices(cluster):
    state, _ = cluster
    preemption = Preemption(within=Within.LOWER)
    queues = make_queues(make_queue("q", 64, preemption=preemption), rules=Rules(pods=True))
    state.set_pod(Pod(key="x/plain", node="tas-0", requests={"nvidia.com/gpu": 1}))
    queues.holders.set_pod(OutsidePod("x/plain", "u", "tas-0", -5, 0.0, {"nvidia.com/gpu": 1}))
    uses = tuple(Use((DRIVER, "p", name)) for name in ("a", "b"))
    state.cluster.devices.set_uses("x/claim", uses, frozenset(["x/plain"]))
    submit(queues, asking("high", priority=5, pod_priority=5))
    assert victims(run(state, queues)) == []


def test_growth_waits_for_devices_as_well(cluster):
    state, queues = cluster
    submit(queues, asking("low"), asking("grows", priority=5))
    run(state, queues)
    hold(state, queues, "low", "a")
    hold(state, queues, "grows", "b")
    queues.submit(asking("grows", 2, priority=5), 1.0)
    queues.wish("grows", {"main": 2})
    assert victims(run(state, queues)) == [["low"]]
    end(state, queues, "low", "a")
    assert run(state, queues, now=2.0).resized == []
    run(state, queues, now=20.0)
    assert queues.entries["grows"].refusal.reason is Reason.CLAIMS_NOT_DEALLOCATED
    deallocate(state, queues, "low-a")
    assert [one.key for one in run(state, queues, now=21.0).resized] == ["grows"]


def test_amounts_are_made_free_where_devices_are(cluster):
    state, queues = cluster
    submit(queues, make_workload("low", gpu=8))
    run(state, queues)
    submit(queues, asking("high", 2, priority=5, created=1.0))
    assert [one.key for one in run(state, queues).preempting] == ["high"]


def test_what_is_promised_and_not_taken_yet_is_given_to_who_is_more_important(cluster):
    state, queues = cluster
    submit(queues, asking("low", 2))
    run(state, queues)
    submit(queues, asking("high", 2, priority=5, created=1.0))
    assert [one.key for one in run(state, queues).preempting] == ["high"]


def test_a_flavor_without_a_topology_counts_no_devices(cluster):
    state, queues = make_state(1, 1, flavors=()), make_queues(make_queue("q", 64, flavors=("plain",)))
    queues.set_flavor(PlainFlavor(name="plain"))
    submit(queues, asking("w", level=None))
    (waiting,) = run(state, queues).waiting
    assert waiting.reason is Reason.RESOURCE_CLAIMS_NOT_COUNTED
    assert "flavor plain has no topology" in waiting.message
    submit(queues, asking("other", level=None, devices=None))
    assert [one.key for one in run(state, queues).admitted] == ["other"]
    extended = read_ask([], (ExtendedRequest("nvidia.com/gpu", "container-0-request-0", "c", 1),))
    submit(queues, asking("extended", level=None, devices=extended))
    assert [one.key for one in run(state, queues).admitted] == ["extended"]


TWO = read_ask([("gpu", "two", text_of(claim(ask("gpu", 2))["spec"]))])
NEAR = read_ask(
    [("gpu", "near", text_of(claim(ask("gpu", 2), constraints=[{"matchAttribute": f"{DRIVER}/zone"}])["spec"]))]
)


def crowded(seed):
    """Two nodes of four devices, some of which take counters of each other, full of workloads of some priorities."""
    dice = random.Random(seed)
    state, queues = (
        make_state(1, 2, gpu=64),
        make_queues(make_queue("q", 999, preemption=Preemption(within=Within.LOWER))),
    )
    ledger = state.cluster.devices
    ledger.set_device_class("c", read_class(device_class()))
    parted = dice.random() < 0.3
    for node in ("tas-0", "tas-1"):
        names = ["a", "b", "c", "d"]
        made = [
            device(name, zone=at // 2, **({"uses": {"memory": "40"}} if parted else {}))
            for at, name in enumerate(names)
        ]
        where = {"pool": node, "nodeName": node, "slices": 2 if parted else 1}
        ledger.set_slice(node, read_slice(resource_slice(*made, name=node, **where)))
        if parted:
            sets = resource_slice(
                name=f"{node}-c",
                sharedCounters=[{"name": "set", "counters": {"memory": {"value": "120"}}}],
                **where,
            )
            ledger.set_slice(f"{node}-c", read_slice(sets))
    running = 0
    for node in ("tas-0", "tas-1"):
        left = ["a", "b", "c"] if parted else ["a", "b", "c", "d"]
        dice.shuffle(left)
        while left and running < 7:
            key, mine = f"w{running}", [left.pop() for _ in range(min(len(left), dice.randint(1, 2)))]
            running += 1
            selected = asking(
                key, len(mine), devices=None, level=HOST, priority=dice.randint(0, 2), created=float(running)
            )
            sets = tuple(msgspec.structs.replace(one, node_selector={HOST: node}) for one in selected.pod_sets)
            queues.submit(msgspec.structs.replace(selected, pod_sets=sets), 0.0)
            run(state, queues)
            hold(state, queues, key, *mine, node=node, pool=node, shared=dice.random() < 0.3)
            if dice.random() < 0.2:
                other = frozenset([f"ns/{key}-{mine[0]}", f"ns/w{dice.randrange(running)}-{dice.choice('abcd')}"])
                ledger.set_uses(f"ns/{key}-{mine[0]}", (Use((DRIVER, node, mine[0])),), other)
    wanted = dice.choice([ONE, TWO, NEAR])
    high = asking(
        "high", dice.randint(1, 3), devices=wanted, priority=9, level=dice.choice(["rack", HOST]), created=99.0
    )
    submit(queues, high)
    return state, queues


def fits_without(state, queues, option, gone):
    checkpoint = state.begin()
    try:
        for key in gone:
            for pod in queues.entries[key].pods:
                state.remove_pod(pod, deallocated=True)
            state.release_workload(key)
        return not isinstance(put(state, "high", option), Refusal)
    finally:
        state.rollback(checkpoint)


@pytest.mark.parametrize("seed", range(60))
def test_the_victims_are_the_least_of_every_set(seed):
    state, queues = crowded(seed)
    entry = queues.entries["high"]
    (option,) = queues.options_of(state, entry.group).found
    running = [key for key in sorted(queues.entries) if key != "high"]
    sets = [one for size in range(len(running) + 1) for one in combinations(running, size)]
    possible = [one for one in sets if fits_without(state, queues, option, one)]
    found = cycle(state, queues, 1.0)
    if () in possible:
        assert [one.key for one in found.admitted] == ["high"]
        return
    if not possible:
        assert not found.admitted
        assert not found.preempting
        return
    (chosen,) = victims(found)

    def cost(keys):
        values = [queues.entries[key].workload.priority for key in keys]
        return max(values), sum(values), len(values)

    assert tuple(sorted(chosen)) in possible
    assert cost(chosen) == min(map(cost, possible))


def of_a_fabric():
    """Three nodes that all reach the same two devices, and a queue that may preempt."""
    state = make_state(1, 3)
    queues = make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    state.cluster.devices.set_device_class("c", read_class(device_class()))
    fabric = resource_slice(device("a"), device("b"), name="s", pool="p", allNodes=True)
    state.cluster.devices.set_slice("s", read_slice(fabric))
    return state, queues


def test_devices_that_several_nodes_reach_come_free_for_any_of_them():
    state, queues = of_a_fabric()
    for key, name in (("one", "a"), ("two", "b")):
        submit(queues, asking(key))
        assert [one.key for one in run(state, queues).admitted] == [key]
        hold(state, queues, key, name, node=next(iter(on(state, key))))
    submit(queues, asking("high", 2, priority=5, created=1.0))
    assert victims(run(state, queues)) == [["one", "two"]]
    end(state, queues, "one", "a")
    end(state, queues, "two", "b")
    deallocate(state, queues, "one-a")
    assert run(state, queues, now=3.0).admitted == []
    submit(queues, asking("late", created=2.0))
    deallocate(state, queues, "two-b")
    assert [one.key for one in run(state, queues, now=4.0).admitted] == ["high"]
    assert run(state, queues, now=5.0).admitted == []


def on(state, key):
    return [name for part in state.assignments(key).values() for piece in part.slices for name, _ in piece.nodes]


def test_what_is_kept_over_several_nodes_and_lost_together_ends_the_plan():
    state, queues = of_a_fabric()
    submit(queues, asking("low", 2))
    run(state, queues)
    hold(state, queues, "low", "a", "b", node=on(state, "low")[0])
    submit(queues, asking("high", 2, priority=5, created=1.0))
    assert victims(run(state, queues)) == [["low"]]
    end(state, queues, "low", "a", "b")
    deallocate(state, queues, "low-a", "low-b")
    state.cluster.devices.set_uses("ns/stranger", (Use((DRIVER, "p", "a")),), frozenset(["ns/stranger"]))
    found = run(state, queues, now=20.0)
    assert (found.admitted, queues.holders.promised()) == ([], [])
