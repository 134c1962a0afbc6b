"""Random histories of the state, each step checked against a naive model that is written for clarity alone.

Checked after every step: usage equals what the model adds up from scratch, kept counts equal fresh ones, a placement
fits node by node, rollback restores everything, equal contents give equal answers.
"""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.engine_factories import (
    BLOCK,
    GPU,
    HOST,
    RACK,
    ask,
    make_flavor,
    make_node,
    make_pod,
    make_pod_set,
    make_state,
    nodes_of,
)

from engine.cluster.fit_counts import Counts, Shape, known_shape
from engine.cluster.state import ClusterState
from engine.model import Policy, Taint, Toleration
from engine.placement.place import extend, replace, shrink
from engine.results import Refusal

NAMES = [f"n{i}" for i in range(12)]
TAINT = Taint(key="x", effect="NoSchedule")
SHAPES = [
    {"gpu": 1},
    {"gpu": 3},
    {"requests": {GPU: 1, "cpu": 20_000}},
    {"gpu": 1, "tolerations": (Toleration(operator="Exists"),)},
    {"gpu": 1, "node_selector": {"disk": "ssd"}},
    {"requests": {}},
]
nodes = st.builds(
    make_node,
    name=st.sampled_from(NAMES),
    block=st.sampled_from(["b1", "b2"]),
    rack=st.sampled_from(["r1", "r2", "r10"]),
    gpu=st.integers(0, 8),
    pods=st.sampled_from([2, 110]),
    labels=st.sampled_from([{}, {"disk": "ssd"}]),
    taints=st.sampled_from([(), (), (TAINT,)]),
    unschedulable=st.sampled_from([False, False, True]),
    ready=st.sampled_from([True, True, True, False]),
)
pod_sets = st.builds(
    lambda count, policy, level, shape: make_pod_set(count, policy, level, **shape),
    count=st.integers(1, 20),
    policy=st.sampled_from(list(Policy)),
    level=st.sampled_from([BLOCK, RACK]),
    shape=st.sampled_from(SHAPES),
)


def charge(usage, node, requests, times=1):
    for resource, amount in {"pods": 1, **requests}.items():
        usage[node, resource] += amount * times


class Model:
    """The same cluster, naively: everything is added up from scratch each time."""

    def __init__(self):
        self.nodes, self.pods, self.held = {}, {}, {}

    def usage(self):
        usage = Counter()
        for pod in self.pods.values():
            charge(usage, pod.node, pod.requests)
        for workload, assignment in self.held.items():
            for node, units in self.left(workload, assignment).items():
                charge(usage, node, assignment.requests, units)
        return usage

    def left(self, workload, assignment):
        """Units that no pod claims: each on its own node first, then the first left over in its slice."""
        left = Counter(nodes_of(assignment))
        claims = Counter(pod.node for pod in self.pods.values() if pod.claim == (workload, "main"))
        for part in assignment.slices:
            mine = [node for node, _ in part.nodes]
            over = sum(
                n for node, n in claims.items() if node not in mine and self.path(node, assignment) == part.values
            )
            for node in mine:
                own = min(left[node], claims[node])
                left[node] -= own
                over += claims[node] - own
            for node in mine:
                taken = min(left[node], over)
                left[node] -= taken
                over -= taken
        return left

    def path(self, node, assignment):
        found = self.nodes.get(node)
        return found and tuple(found.labels[level] for level in assignment.levels)

    def free(self):
        usage = self.usage()
        resources = {"pods", *(r for node in self.nodes.values() for r in node.allocatable), *(r for _, r in usage)}
        return {
            name: {r: node.allocatable.get(r, 0) - usage[name, r] for r in resources}
            for name, node in self.nodes.items()
        }


class History(RuleBasedStateMachine):
    """``levels`` differ: in one run each slice is a host, in the other a rack."""

    levels = (BLOCK, RACK, HOST)

    def __init__(self):
        super().__init__()
        self.state = make_state(flavor=make_flavor(levels=self.levels))
        self.model = Model()
        self.marks = []

    @initialize(first=st.lists(nodes, min_size=4, max_size=12))
    def start(self, first):
        for node in first:
            self.set_node(node)

    # -- events -----------------------------------------------------------------------------------------------

    @rule(node=nodes)
    def set_node(self, node):
        assert self.state.set_node(node) is (self.model.nodes.get(node.name) != node)
        self.model.nodes[node.name] = node
        assert self.state.set_node(node) is False

    @rule(name=st.sampled_from(NAMES))
    def remove_node(self, name):
        assert self.state.remove_node(name) is (self.model.nodes.pop(name, None) is not None)

    @rule(
        key=st.integers(0, 8),
        node=st.sampled_from(NAMES),
        gpu=st.integers(0, 2),
        claim=st.sampled_from([None, 0, 1, 2]),
    )
    def set_pod(self, key, node, gpu, claim):
        pod = make_pod(f"p{key}", node, gpu, claim=None if claim is None else (f"w{claim}", "main"))
        assert self.state.set_pod(pod) is (self.model.pods.get(pod.key) != pod)
        self.model.pods[pod.key] = pod
        assert self.state.set_pod(pod) is False

    @rule(key=st.integers(0, 8))
    def remove_pod(self, key):
        assert self.state.remove_pod(f"p{key}") is (self.model.pods.pop(f"p{key}", None) is not None)

    # -- decisions --------------------------------------------------------------------------------------------

    @rule(pod_set=pod_sets, workload=st.integers(0, 2))
    def place_and_reserve(self, pod_set, workload):
        key = f"w{workload}"
        before, version = self.model.free(), self.state.version
        answer = ask(self.state, pod_set, key=key)
        assert self.state.version == version
        if isinstance(answer, Refusal):
            assert answer.message
            return
        (assignment,) = answer.assignments
        self.check_fits(pod_set, nodes_of(assignment), before)
        self.state.reserve(key, [assignment])
        self.model.held[key] = assignment

    def check_fits(self, pod_set, used, free):
        assert sum(used.values()) == pod_set.count
        for name, count in used.items():
            node = self.model.nodes[name]
            assert node.ready
            assert pod_set.tolerations or not (node.taints or node.unschedulable)
            assert pod_set.node_selector.items() <= node.labels.items()
            for resource, amount in {"pods": 1, **pod_set.requests}.items():
                assert free[name].get(resource, 0) >= amount * count
        if pod_set.topology.policy is Policy.REQUIRED:
            keys = self.levels[: self.levels.index(pod_set.topology.level) + 1]
            assert len({tuple(self.model.nodes[name].labels[key] for key in keys) for name in used}) == 1

    @rule(one=pod_sets, other=pod_sets)
    def place_two(self, one, other):
        before = {name: self.state.free_on_node(name) for name in self.state.nodes}
        version = self.state.version
        ask(self.state, *(make_again(p, name) for p, name in ((one, "a"), (other, "b"))))
        assert ({name: self.state.free_on_node(name) for name in self.state.nodes}, self.state.version) == (
            before,
            version,
        )

    @rule(workload=st.integers(0, 2))
    def release(self, workload):
        assert self.state.release_workload(f"w{workload}") is (self.model.held.pop(f"w{workload}", None) is not None)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), by=st.integers(1, 5), pod_set=pod_sets, way=st.sampled_from(["extend", "shrink", "replace"]))
    def resize(self, data, by, pod_set, way):
        key = data.draw(st.sampled_from(sorted(self.model.held)))
        held = self.model.held[key]
        pod_set = make_again(pod_set, "main", requests=held.requests)
        if way == "extend":
            answer, count = extend(self.state, key, pod_set, by), held.count + by
        elif way == "shrink":
            answer, count = shrink(self.state, key, "main", by), max(held.count - by, 0)
        else:
            lost = set(data.draw(st.lists(st.sampled_from(NAMES), max_size=4)))
            answer, count = replace(self.state, key, pod_set, lost), held.count
            assert isinstance(answer, Refusal) or not lost & nodes_of(answer).keys()
        if not isinstance(answer, Refusal):
            assert sum(nodes_of(answer).values()) == answer.count == count
            self.state.reserve(key, [answer])
            self.model.held[key] = answer

    # -- transactions -----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.marks) < 3)
    @rule()
    def begin(self):
        saved = dict(self.model.nodes), dict(self.model.pods), dict(self.model.held)
        self.marks.append((self.state.begin(), saved, self.state.version))

    @precondition(lambda self: self.marks)
    @rule(depth=st.integers(0, 2))
    def rollback(self, depth):
        depth = min(depth, len(self.marks) - 1)
        checkpoint, (self.model.nodes, self.model.pods, self.model.held), version = self.marks[depth]
        del self.marks[depth:]
        self.state.rollback(checkpoint)
        assert self.state.version == version

    @precondition(lambda self: self.marks)
    @rule()
    def commit(self):
        self.state.commit(self.marks.pop()[0])

    # -- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def usage_is_what_the_model_adds_up(self):
        for name, free in self.model.free().items():
            have = self.state.free_on_node(name)
            assert {r: have.get(r, 0) for r in free | have} == {r: free.get(r, 0) for r in free | have}, name
        assert self.state.nodes == self.model.nodes
        assert self.state.pods == self.model.pods
        assert {key: parts["main"] for key, parts in self.state.workloads.items()} == self.model.held

    @invariant()
    def kept_counts_are_fresh_counts(self):
        tree = self.state.tree("tas")
        columns = self.state.cluster.columns
        for shape in SHAPES:
            pod_set = make_pod_set(1, **shape)
            kept = known_shape(columns, tree, pod_set).counts
            fresh = Counts(tree, Shape.compile_shape(columns.table, tree, pod_set).fit(columns, tree.span))
            assert kept.peak >= fresh.peak
            for rank in range(tree.leaf + 1):
                assert kept.counts_of_rank(rank).tolist() == fresh.counts_of_rank(rank).tolist()

    @invariant()
    def equal_contents_give_equal_answers(self):
        other = ClusterState()
        other.set_flavor(make_flavor(levels=self.levels))
        for key, assignment in reversed(self.model.held.items()):
            other.reserve(key, [assignment])
        for pod in sorted(self.model.pods.values(), key=lambda pod: pod.key, reverse=True):
            other.set_pod(pod)
        for node in sorted(self.model.nodes.values(), key=lambda node: node.name, reverse=True):
            other.set_node(node)
        pod_set = make_pod_set(5, Policy.PREFERRED)
        assert ask(other, pod_set) == ask(self.state, pod_set)


class HistoryOfRacks(History):
    levels = (BLOCK, RACK)


def make_again(pod_set, name, requests=None):
    fields = {field: getattr(pod_set, field) for field in pod_set.__struct_fields__}
    return type(pod_set)(**fields | {"name": name} | ({"requests": requests} if requests is not None else {}))


QUICK = settings(max_examples=80, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
TestHistory = History.TestCase
TestHistory.settings = QUICK
TestHistoryOfRacks = HistoryOfRacks.TestCase
TestHistoryOfRacks.settings = QUICK
