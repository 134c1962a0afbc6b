"""Random histories of nodes whose inside is known, each step checked against sums and admissions made from scratch."""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.engine_factories import BLOCK, GPU, HOST, RACK, ask, make_flavor, make_node, nodes_of
from support.numa_factories import BEST_EFFORT, RESTRICTED, SINGLE, at, make_machine, make_shape, pod_on, pods_of

from engine.cluster.fit_counts import Counts, Shape, known_shape
from engine.cluster.state import ClusterState
from engine.kubelet.admit import admit
from engine.kubelet.machine import Qos, State
from engine.model import Policy
from engine.placement.place import extend, replace, shrink
from engine.results import Refusal

NAMES = [f"n{i}" for i in range(5)]
SHAPES = [
    make_shape({"cpu": 2, GPU: 1}),
    make_shape({GPU: 2}, qos=Qos.BURSTABLE),
    make_shape({"cpu": 1, "memory": 3}),
    make_shape({"cpu": 3}),
    make_shape({"cpu": 1, GPU: 1}, {"cpu": 2}),
]
machines = st.builds(
    lambda node, zones, gpus, policy, exact: make_machine(
        *({"cpu": 4, GPU: gpus, "memory": 4} for _ in range(zones)), node=node, policy=policy, exact=exact
    ),
    node=st.sampled_from(NAMES),
    zones=st.integers(1, 3),
    gpus=st.integers(1, 3),
    policy=st.sampled_from([SINGLE, RESTRICTED, BEST_EFFORT]),
    exact=st.booleans(),
)
placements = st.one_of(
    st.none(),
    st.builds(
        lambda zone, cpu, gpu: at((zone, {"cpu": cpu, GPU: gpu})),
        zone=st.integers(0, 3),
        cpu=st.integers(0, 3),
        gpu=st.integers(0, 2),
    ),
)


class History(RuleBasedStateMachine):
    """``reconstruct`` is what the state is made with."""

    reconstruct = True

    def __init__(self):
        super().__init__()
        self.state = ClusterState(reconstruct_available=self.reconstruct)
        self.state.set_flavor(make_flavor(levels=(BLOCK, RACK, HOST)))
        self.marks = []

    @initialize(first=st.lists(machines, min_size=3, max_size=5, unique_by=lambda machine: machine.node))
    def start(self, first):
        for machine in first:
            self.state.set_node(make_node(machine.node, rack=f"r{int(machine.node[1:]) % 2}", gpu=6, cpu=12_000))
            self.state.set_machine(machine)

    def everything(self):
        """All that can be seen of the insides."""
        held = [(key, part) for key, parts in self.state.workloads.items() for part in parts]
        inside = {name: self.state.state_inside(name) for name in NAMES}
        slots = {(key, part, name): self.state.placements(key, part, name) for key, part in held for name in NAMES}
        return inside, {where: found for where, found in slots.items() if found}

    # -- events -----------------------------------------------------------------------------------------------

    @rule(machine=machines)
    def set_machine(self, machine):
        changed = self.state.machines.get(machine.node) != machine
        assert self.state.set_machine(machine) is changed
        assert self.state.set_machine(machine) is False

    @rule(name=st.sampled_from(NAMES))
    def remove_machine(self, name):
        known = name in self.state.machines
        assert self.state.remove_machine(name) is known

    @rule(name=st.sampled_from(NAMES), rack=st.sampled_from(["r0", "r1"]), ready=st.booleans())
    def set_node(self, name, rack, ready):
        self.state.set_node(make_node(name, rack=rack, gpu=6, cpu=12_000, ready=ready))

    @rule(name=st.sampled_from(NAMES))
    def remove_node(self, name):
        self.state.remove_node(name)

    @rule(
        key=st.integers(0, 6),
        node=st.sampled_from(NAMES),
        shape=st.sampled_from(SHAPES),
        placement=placements,
        claim=st.sampled_from([None, 0, 1]),
    )
    def set_pod(self, key, node, shape, placement, claim):
        self.state.set_pod(pod_on(f"p{key}", shape, placement, node, None if claim is None else (f"w{claim}", "main")))

    @rule(key=st.integers(0, 6))
    def remove_pod(self, key):
        self.state.remove_pod(f"p{key}")

    # -- decisions --------------------------------------------------------------------------------------------

    @rule(
        shape=st.sampled_from(SHAPES),
        count=st.integers(1, 6),
        policy=st.sampled_from(list(Policy)),
        workload=st.integers(0, 2),
    )
    def place_and_reserve(self, shape, count, policy, workload):
        key = f"w{workload}"
        self.state.release_workload(key)
        before, version = self.everything(), self.state.version
        answer = ask(self.state, pods_of(shape, count, policy), key=key)
        assert (self.everything(), self.state.version) == (before, version)
        if isinstance(answer, Refusal):
            return
        self.state.reserve(key, answer.assignments)
        for name, units in nodes_of(answer).items():
            unclaimed = self.state.unclaimed_on(key, "main", name)
            assert unclaimed <= units
            decided = len(self.state.placements(key, "main", name))
            assert decided == (unclaimed if name in self.state.machines else 0)

    @rule(workload=st.integers(0, 2))
    def release(self, workload):
        self.state.release_workload(f"w{workload}")

    @precondition(lambda self: self.state.workloads)
    @rule(data=st.data(), by=st.integers(1, 3), way=st.sampled_from(["extend", "shrink", "replace"]))
    def resize(self, data, by, way):
        key = data.draw(st.sampled_from(sorted(self.state.workloads)))
        held = self.state.assignments(key)["main"]
        pod_set = pods_of(held.shape, held.count + by, held.source.topology.policy)
        if way == "extend":
            answer = extend(self.state, key, pod_set, by)
        elif way == "shrink":
            answer = shrink(self.state, key, "main", by)
        else:
            answer = replace(self.state, key, pod_set, set(data.draw(st.lists(st.sampled_from(NAMES), max_size=2))))
        if not isinstance(answer, Refusal):
            self.state.reserve(key, [answer])

    # -- transactions -----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.marks) < 3)
    @rule(look=st.booleans())
    def begin(self, look):
        before = self.everything() if look else None
        self.marks.append((self.state.begin(), before))

    @precondition(lambda self: self.marks)
    @rule(depth=st.integers(0, 2))
    def rollback(self, depth):
        depth = min(depth, len(self.marks) - 1)
        checkpoint, before = self.marks[depth]
        del self.marks[depth:]
        self.state.rollback(checkpoint)
        assert before is None or self.everything() == before

    @precondition(lambda self: self.marks)
    @rule()
    def commit(self):
        self.state.commit(self.marks.pop()[0])

    # -- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def free_is_allocatable_less_all_placements(self):
        if not self.reconstruct:
            return
        inside, slots = self.everything()
        for name, machine in self.state.machines.items():
            layout = machine.layout
            if layout.exact:
                continue
            # A pod that took a slot before anybody saw it holds that slot's zones, whatever its record says.
            pods = [pod for pod in self.state.pods.values() if pod.node == name]
            held = [placement for pod in pods if (placement := self.state.cluster.numa.held_by(pod))]
            held += [placement for where, found in slots.items() if where[2] == name for placement in found]
            zones = {zone.id for zone in layout.zones}
            free = [list(row) for row in layout.allocatable]
            for placement in held:
                if all(use.zone in zones for use in placement.zones):
                    for use in placement.zones:
                        for resource, amount in use.amounts.items():
                            free[use.zone][layout.resources.index(resource)] -= amount
            if len(zones) == 1:  # what no record says of is there all the same
                for pod in pods:
                    placement = self.state.held_inside(pod)
                    if placement is None or any(use.zone not in zones for use in placement.zones):
                        for container in pod.shape.containers:
                            self.take(layout, free[0], container, pod.shape.qos)
            assert inside[name].free == tuple(tuple(max(amount, 0) for amount in row) for row in free), name

    @staticmethod
    def take(layout, free, container, qos):
        for resource, amount in container.limits if qos is not Qos.GUARANTEED else container.requests:
            if resource in layout.resources:
                free[layout.resources.index(resource)] -= amount

    @invariant()
    def counts_are_sequential_admission(self):
        tree = self.state.tree("tas")
        columns = self.state.cluster.columns
        for shape in SHAPES:
            pod_set = pods_of(shape)
            kept = known_shape(columns, tree, pod_set).counts
            fresh = Counts(tree, Shape.compile_shape(columns.table, tree, pod_set).fit(columns, tree.span))
            for rank in range(tree.leaf + 1):
                assert kept.counts_of_rank(rank).tolist() == fresh.counts_of_rank(rank).tolist()
            amounts = Shape.compile_shape(columns.table, tree, pod_set).fit_amounts(columns, tree.span)
            for leaf, name in enumerate(tree.names):
                assert int(kept.leaf[leaf]) == self.granted(name, shape, int(amounts[leaf])), (name, shape)

    def granted(self, name, shape, most):
        machine, state = self.state.machines.get(name), self.state.state_inside(name)
        if machine is None:
            return most
        for count in range(most):
            admission = admit(machine.layout, state, shape)
            if not admission.admitted:
                return count
            state = admission.after
        return most


class HistoryOfReports(History):
    reconstruct = False


class HistoryOfUnrecorded(History):
    """Reports that say anything at all of what is available, beside pods of which no record says where they are."""

    @rule(name=st.sampled_from(NAMES), used=st.lists(st.integers(0, 5000), min_size=9, max_size=9))
    def report_again(self, name, used):
        machine = self.state.machines.get(name)
        if machine is not None and not machine.layout.exact:
            left = iter(used)
            free = tuple(tuple(max(amount - next(left), 0) for amount in row) for row in machine.layout.allocatable)
            self.state.set_machine(msgspec.structs.replace(machine, state=State(free=free)))

    @rule(name=st.sampled_from(NAMES))
    def settle(self, name):
        if not self.marks:
            self.state.finish_listing()

    @invariant()
    def free_is_allocatable_less_all_placements(self):
        """No more than that, and no less than that less what pods without a record ask for, in every zone."""
        inside, slots = self.everything()
        for name, machine in self.state.machines.items():
            if machine.layout.exact:
                continue
            zones = {zone.id for zone in machine.layout.zones}
            most = [list(row) for row in machine.layout.allocatable]
            asked = [0] * len(machine.layout.resources)
            held = [placement for where, found in slots.items() if where[2] == name for placement in found]
            for pod in [pod for pod in self.state.pods.values() if pod.node == name]:
                placement = self.state.held_inside(pod)
                if placement is not None and all(use.zone in zones for use in placement.zones):
                    held.append(placement)
                    continue
                for container in pod.shape.containers:
                    self.take(machine.layout, asked, container, pod.shape.qos)
            for placement in held:
                for use in placement.zones:
                    for resource, amount in use.amounts.items():
                        most[use.zone][machine.layout.resources.index(resource)] -= amount
            for row, free in zip(most, inside[name].free, strict=True):
                for much, found, less in zip(row, free, asked, strict=True):
                    assert max(much + less, 0) <= found <= max(much, 0), name


QUICK = settings(max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck))
TestHistory = History.TestCase
TestHistory.settings = QUICK
TestHistoryOfReports = HistoryOfReports.TestCase
TestHistoryOfReports.settings = QUICK
TestHistoryOfUnrecorded = HistoryOfUnrecorded.TestCase
TestHistoryOfUnrecorded.settings = QUICK
