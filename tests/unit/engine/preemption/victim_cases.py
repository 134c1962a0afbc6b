"""Small clusters at random, full to some degree, and the best victims by trying every set of them."""

import random
from dataclasses import dataclass
from itertools import combinations

from engine.kubelet.admit import admit, empty, placement_of
from engine.kubelet.charge import charge
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Container,
    DeviceLayout,
    Kubelet,
    Layout,
    PodShape,
    Scope,
    TopologyPolicy,
    Zone,
)
from engine.kubelet.machine import Qos as PodQos
from engine.model import PODS
from engine.preemption.blocks import kind_of, wanted
from engine.preemption.model import ChoiceRules, Landing, NodeRoom, Preemptor, Scoring, TopologyQos, VictimPod
from engine.preemption.search import cost_of, landing_of

GPU = "nvidia.com/gpu"
GIB = 2**30
WISHES = list(TopologyPolicy)


@dataclass
class Case:
    rooms: list[NodeRoom]
    preemptor: Preemptor


def shape_of(requests, *, parts=1, wish=TopologyPolicy.NONE, wish_resources=(), link=""):
    """A Guaranteed pod; its requests are split over so many containers."""
    containers = []
    for part in range(parts):
        own = {name: amount // parts for name, amount in requests.items()}
        if CPU in own:
            own[CPU] -= own[CPU] % 1000
        if part == 0:
            for name, amount in requests.items():
                own[name] += amount - own[name] * parts
        pairs = tuple(sorted((name, amount) for name, amount in own.items() if amount))
        containers.append(Container(name=f"c{part}", requests=pairs, limits=pairs))
    return PodShape(
        containers=tuple(containers), qos=PodQos.GUARANTEED, wish=wish, wish_resources=wish_resources, gpu_link=link
    )


def make_layout(dice, *, exact=None):
    zones = dice.choice((1, 2, 2, 4, 4, 8))
    a_socket = dice.choice([n for n in (1, 2, 4) if zones % n == 0])
    cpus, gpus = dice.choice((2, 4)), dice.choice((1, 1, 2))
    with_memory = dice.random() < 0.3
    exact = dice.random() < 0.4 if exact is None else exact
    policy = dice.choice(
        (TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE)
    )
    each = {CPU: cpus * 1000, GPU: gpus} | ({MEMORY: 8 * GIB} if with_memory else {})
    resources = tuple(sorted(each))
    amounts = tuple(tuple(each[name] for name in resources) for _ in range(zones))
    distances = [
        tuple(10 if z == o else 12 if z // a_socket == o // a_socket else 32 for o in range(zones))
        for z in range(zones)
    ]
    return Layout(
        zones=tuple(
            Zone(
                id=z,
                socket=z // a_socket,
                distances=distances[z],
                cores=tuple((cpus * z + i,) for i in range(cpus)) if exact else (),
            )
            for z in range(zones)
        ),
        resources=resources,
        capacity=amounts,
        allocatable=amounts,
        kubelet=Kubelet(
            policy=policy,
            scope=dice.choice((Scope.POD, Scope.CONTAINER)),
            static_cpu=dice.random() < 0.9,
            static_memory=with_memory,
            prefer_closest_numa_nodes=dice.random() < 0.5,
        ),
        devices=tuple(
            tuple(DeviceLayout(zones=1 << z) for z in range(zones) for _ in range(gpus))
            if name == GPU and exact
            else ()
            for name in resources
        ),
        threads=1,
        exact=exact,
    )


def make_room(dice, name, most):
    """A node that pods were admitted to until it was full, or nearly; some went again, some may not be evicted."""
    layout = make_layout(dice)
    zones = len(layout.zones)
    each = dict(zip(layout.resources, layout.allocatable[0], strict=True))
    free = {CPU: zones * each[CPU], GPU: zones * each[GPU], MEMORY: zones * 8 * GIB, PODS: dice.choice((4, 20))}
    state, ids = empty(layout), {GPU: tuple(f"g{i}" for i in range(zones * each[GPU]))} if layout.exact else {}
    placed = []
    for number in range(dice.randint(0, 2 * most)):
        if len(placed) == most:
            break
        requests = request_of(dice, small=True)
        shape = shape_of(requests)
        admission = admit(layout, state, shape)
        taken = {PODS: 1, **requests}
        if not admission.admitted or any(free[k] < v for k, v in taken.items()):
            continue
        placement = placement_of(layout, admission, ids)
        state = admission.after
        free = {k: v - taken.get(k, 0) for k, v in free.items()}
        placed.append(VictimPod(f"{name}-{number}", dice.choice((0, 0, 1, 2, 5, -3)), taken, placement))
    victims = []
    for victim in placed:
        fate = dice.random()
        if fate < 0.2:
            state = charge(layout, state, victim.placement, -1, ids)
            free = {k: v + victim.requests.get(k, 0) for k, v in free.items()}
        elif fate < 0.9:
            victims.append(victim)
    dice.shuffle(victims)
    if dice.random() < 0.1:
        return NodeRoom(name, free, tuple(victims))
    return NodeRoom(name, free, tuple(victims), layout, state, ids)


def request_of(dice, *, small):
    gpus = dice.choice((0, 1, 1, 2) if small else (0, 1, 2, 2, 3, 4))
    cpus = dice.choice((500, 1000, 2000, 3000) if small else (1000, 2000, 4000, 6000))
    found = {CPU: cpus, MEMORY: dice.choice((1, 2, 4)) * GIB}
    return found | ({GPU: gpus} if gpus else {})


def make_case(seed, *, nodes=3, most=8):
    dice = random.Random(seed)
    rooms = [make_room(dice, f"n{i}", most) for i in range(dice.randint(1, nodes))]
    requests = request_of(dice, small=False)
    wish = dice.choice(WISHES)
    resources = dice.choice(((), (), (GPU,), (CPU,)))
    shape = (
        None
        if dice.random() < 0.1
        else shape_of(requests, parts=dice.choice((1, 1, 2)), wish=wish, wish_resources=resources)
    )
    return Case(rooms, Preemptor(requests, dice.choice((1, 3, 9)), shape, dice.choice(list(TopologyQos))))


def landing(room, preemptor, picked):
    """Where the preemptor lands with these gone; None where it gets no room."""
    needs = wanted(kind_of(room.layout), preemptor)
    if needs is None:
        return None
    free = dict(room.free)
    for victim in picked:
        for name, amount in victim.requests.items():
            free[name] = free.get(name, 0) + amount
    if any(free.get(name, 0) < amount for name, amount in {PODS: 1, **preemptor.requests}.items()):
        return None
    if preemptor.qos is TopologyQos.BLIND or preemptor.shape is None:
        return Landing.ACROSS
    if room.layout is None:
        return Landing.UNKNOWN
    state = room.state
    for victim in picked:
        state = charge(room.layout, state, victim.placement, -1, room.device_ids)
    admission = admit(room.layout, state, needs.asked)
    return landing_of(room.layout, admission.zones) if admission.admitted else None


def exhaustive(case, strategy, scoring=None):
    """The best (what is compared, without ties) over every set of every node; None where none fits."""
    scoring, best = scoring or Scoring(), None
    for room in case.rooms:
        may = [victim for victim in room.victims if victim.priority < case.preemptor.above]
        for size in range(len(may) + 1):
            for picked in combinations(may, size):
                where = landing(room, case.preemptor, picked)
                if where is None:
                    continue
                key = ChoiceRules(strategy, scoring).key(cost_of(picked), where, 0)[:-1]
                if best is None or key < best:
                    best = key
    return best


def key_of(choice, strategy, preemptor, scoring=None):
    """The same of what was found."""
    return (
        None if choice is None else ChoiceRules(strategy, scoring or Scoring()).key(choice.cost, choice.landing, 0)[:-1]
    )
