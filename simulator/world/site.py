"""The nodes of a simulation: the state that the scheduler believes in, and the kubelets that pods meet.

With the topology policy the state knows the insides of nodes, and learns what every pod got there as it does from the
agents. A policy that counts amounts knows none of that.

A pod with resource claims is given devices as kube-scheduler would, the first that fit, when it comes to its node; they
come back when it is gone, or its kubelet refuses it. That is so with every policy.
"""

import random
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence

import msgspec

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.devices.ledger import COSTLY
from engine.kubelet.machine import Machine, State
from engine.model import Flavor, Pod, PodSet
from engine.reasons import Reason
from queueing.queues.entry import AssumedAdmission
from queueing.queues.eviction_units import Path
from queueing.queues.queues import Queues
from simulator.model import Placing, SchedulingPolicy, SimulatedCluster, SimulatedJob
from simulator.world.kubelets import Kubelets
from simulator.world.scatter import scattered


class Where(msgspec.Struct, eq=False):
    """The pods of a job that was admitted. ``pods``: (key, pod set, node); ``taken``: those that kubelets took.

    ``going``: those that were told to go, and are there yet. ``made``: how many there were in all.
    """

    job: SimulatedJob
    pods: list[tuple[str, PodSet, str]]
    taken: set[str] = msgspec.field(default_factory=set)
    going: set[str] = msgspec.field(default_factory=set)
    made: int = 0

    @property
    def working(self) -> int:
        """How many of its pods do work."""
        return len(self.taken - self.going)

    def add(self, pods: Sequence[tuple[str, PodSet, str]]) -> None:
        """More pods were made."""
        self.pods = [*self.pods, *pods]
        self.made += len(pods)

    def send_away(self, keys: Collection[str]) -> None:
        """These pods are told to go."""
        self.going.update(keys)

    def end_one(self, kept: Iterable[Assignment], pod_set: str) -> "Where":
        """One of a pod set leaves it whose slot is not kept; returns it."""
        left = Counter(node for part in kept if part.pod_set == pod_set for node in _nodes(part))
        mine = [pod for pod in self.pods if pod[1].name == pod_set]
        spare = Counter(node for _, _, node in mine) - left
        # The last one on a node that holds more pods than the kept
        # slots, as the queue core gives back the last ranks first.
        one = next((pod for pod in reversed(mine) if spare[pod[2]]), mine[-1])
        self.pods = [pod for pod in self.pods if pod is not one]
        self.taken.discard(one[0])
        return Where(self.job, [one], {one[0]})

    def parted(self) -> "Where":
        """Those that were told to go leave it; returns them."""
        gone = Where(self.job, [pod for pod in self.pods if pod[0] in self.going])
        self.pods = [pod for pod in self.pods if pod[0] not in self.going]
        self.taken -= self.going
        self.going.clear()
        return gone


class Site:
    """See the module. ``seed`` breaks ties of placing by count."""

    def __init__(self, cluster: SimulatedCluster, policy: SchedulingPolicy, seed: int) -> None:
        self._placing = policy.placing
        self._dice = random.Random(seed)  # noqa: S311  (a simulation, not a secret)
        # The world has its machines with every policy, also where the scheduler's state is not told of them.
        self.kubelets = Kubelets(_machines(cluster))
        self.state = ClusterState(alignment_over_packing=policy.alignment, nodes_per_opened_domain=policy.opening)
        self.inside = bool(cluster.machines) and policy.placing is Placing.TOPOLOGY
        _fill(self.state, cluster, machines=cluster.machines if self.inside else ())

    def put(self, job: SimulatedJob, grant: AssumedAdmission, queues: Queues) -> Where:
        """Where the pods of an admitted job go; by count they are put elsewhere than the queue core thought."""
        assignments = grant.assignments
        if self._placing is not Placing.TOPOLOGY:
            # One pod set after another, each where the ones before it left room; then the queue core is told.
            made = list[Assignment]()
            for at, part in enumerate(grant.assignments):
                # Without the part that is placed next: its slots would take the room that it looks for.
                self.state.reserve(job.key, [*made, *grant.assignments[at + 1 :]])
                made.append(scattered(self.state, part, self._placing, self._dice))
            self.state.reserve(job.key, made)
            assignments = tuple(made)
            replaced = AssumedAdmission(grant.queue, grant.counts, grant.flavors, grant.amounts, assignments)
            queues.grant(self.state, job.key, replaced)
        by_name = {pod_set.name: pod_set for pod_set in job.pod_sets}
        pods = [
            (f"{job.key}-{part.pod_set}-{number}", by_name[part.pod_set], node)
            for part in assignments
            for number, node in enumerate(_nodes(part))
        ]
        return Where(job, pods, made=len(pods))

    def inside_of(self, where: Where, domains: Collection[Path], levels: Sequence[str]) -> set[str]:
        """The keys of those of its pods that are in some domains, by the values of the widest levels."""
        labels = {node: self.state.nodes[node].labels for _, _, node in where.pods}
        values = {node: tuple([known.get(level, "") for level in levels]) for node, known in labels.items()}
        inside = {node for node, path in values.items() if any(path[: len(domain)] == domain for domain in domains)}
        return {key for key, _, node in where.pods if node in inside}

    def send_off(self, where: Where, left: Iterable[Assignment], queues: Queues) -> None:
        """The pods in these slots are told to go; until they are gone they take their nodes by themselves."""
        keys = set[str]()
        for part in left:
            for piece in part.slices:
                there = self.inside_of(where, (piece.values,), part.levels) - keys
                mine = [key for key, pod_set, _ in where.pods if key in there and pod_set.name == part.pod_set]
                keys.update(mine[len(mine) - piece.count :])
        where.send_away(keys)
        for key, pod_set, node in where.pods:
            if key in keys:
                known = self.state.pods.get(key) or self._pod(where.job, key, pod_set, node)
                # Without its claim the pod fills none of the new slots,
                # which are for the pods that are made in its place.
                self.state.set_pod(msgspec.structs.replace(known, claim=None))
                queues.unbind(key)

    @staticmethod
    def grown(where: Where, grant: AssumedAdmission) -> Where:
        """The pods of a job that was given more of them, beside those that it has, as ``where`` knows them now too."""
        by_name, made = {pod_set.name: pod_set for pod_set in where.job.pod_sets}, list[tuple[str, PodSet, str]]()
        for part in grant.assignments:
            there = Counter(node for _, pod_set, node in where.pods if pod_set.name == part.pod_set)
            for node in (Counter(_nodes(part)) - there).elements():
                key = f"{where.job.key}-{part.pod_set}-{where.made + len(made)}"
                made.append((key, by_name[part.pod_set], node))
        where.add(made)
        return Where(where.job, made)

    def flavors_on(self, node: str) -> Collection[str]:
        """The flavors that a node is of."""
        return self.state.flavors_on(node)

    def uncounted(self, job: SimulatedJob) -> str:
        """Why the devices of a job are not counted as things stand; "" where they are."""
        asks = [pod_set.devices for pod_set in job.pod_sets if pod_set.devices is not None]
        refused = any(self.state.cluster.devices.is_uncounted(ask) for ask in asks)
        return f"{Reason.RESOURCE_CLAIMS_NOT_COUNTED}: {COSTLY}" if refused else ""

    @staticmethod
    def gives_devices(job: SimulatedJob) -> bool:
        """Whether pods of a job get devices when they start: what their slots kept beside these is free then."""
        return any(pod_set.devices is not None for pod_set in job.pod_sets)

    def offer(self, where: Where, queues: Queues) -> list[str]:
        """Pods that did not come yet get their devices, and kubelets look at them; why those were refused that were."""
        refused = []
        for key, pod_set, node in where.pods:
            if key in where.taken or key in where.going:
                continue
            # Devices first: kube-scheduler allocates them before the pod is bound, and the kubelet sees it only then.
            reason = self._allocate_devices(key, pod_set, node) or self.kubelets.admit_arrival(node, key, pod_set.shape)
            if reason:
                self._take_back(key, pod_set)
                refused.append(reason)
                continue
            where.taken.add(key)
            if self.inside or pod_set.devices is not None:
                # The pod is bound, and its node says what it holds.
                self.state.set_pod(self._pod(where.job, key, pod_set, node))
                queues.bind(key, where.job.key)
                if pod_set.devices is not None:
                    # Its slot kept devices beside those that it has by now.
                    queues.room_freed(self.state.flavors_on(node))
        self._report(where)
        return refused

    def _allocate_devices(self, key: str, pod_set: PodSet, node: str) -> str:
        """Give a pod the devices that it claims; why there are none, "" where it has all."""
        if pod_set.devices is None:
            return ""
        ledger = self.state.cluster.devices
        uses = ledger.first_fit(node, pod_set.devices)
        if uses is None:
            return f"no devices for its claims: {ledger.explain_devices(node, pod_set.devices)}"
        ledger.set_uses(key, uses, frozenset([key]))
        return ""

    def _take_back(self, key: str, pod_set: PodSet) -> None:
        if pod_set.devices is not None:
            self.state.cluster.devices.set_uses(key, ())

    def crossing(self, where: Where, resource: str) -> int:
        """How many of the pods got devices of several sockets though one has as many."""
        return sum(self.kubelets.crosses(node, key, resource) for key, _, node in where.pods)

    def avoidable(self, where: Where, resource: str, closed: Container[str] = ()) -> int:
        """How many of those would not have to: on a node with room for them they get devices of one socket.

        Room that others hold is none; what is kept for those who wait for long (claims) counts as free, but on nodes
        that are ``closed`` for them.
        Of pods that wish a level, nodes of the same domain of it count alone.
        """
        found = ((pod_set, node) for key, pod_set, node in where.pods if self.kubelets.crosses(node, key, resource))
        return sum(self._spares(pod_set, node, resource, closed) for pod_set, node in found)

    def _spares(self, pod_set: PodSet, node: str, resource: str, closed: Container[str]) -> bool:
        level, shape, nodes = pod_set.topology.level, pod_set.shape, self.state.nodes
        return shape is not None and any(
            name in self.kubelets
            and name != node
            and name not in closed
            and (level is None or other.labels.get(level) == nodes[node].labels.get(level))
            and all(self.state.free_on_node(name).get(each, 0) >= amount for each, amount in pod_set.requests.items())
            and not self.kubelets.would_cross(name, shape, resource)
            for name, other in nodes.items()
        )

    def split(self, where: Where) -> int:
        """How many of the pods hold something of more NUMA zones than they would on an empty machine."""
        return sum(self.kubelets.splits(node, key, pod_set.shape) for key, pod_set, node in where.pods)

    def _pod(self, job: SimulatedJob, key: str, pod_set: PodSet, node: str) -> Pod:
        held = self.kubelets.placement_of_pod(node, key) if self.inside else None
        return Pod(
            key=key,
            node=node,
            requests=pod_set.requests,
            namespace=job.namespace,
            labels=pod_set.labels,
            anti_affinity=pod_set.anti_affinity,
            claim=(job.key, pod_set.name),
            shape=pod_set.shape,
            placement=held,
            observed=held is not None,
            attached=pod_set.attached,
        )

    def clear(self, where: Where, queues: Queues) -> None:
        """The pods are gone; what was held for them is the queue core's to give back."""
        for key, pod_set, node in where.pods:
            self.kubelets.remove(node, key)
            self._take_back(key, pod_set)
            if self.state.remove_pod(key):
                queues.unbind(key)
        self._report(where)

    def _report(self, where: Where) -> None:
        if not self.inside:
            return
        for node in dict.fromkeys(node for _, _, node in where.pods):
            report = self.kubelets.report(node)
            if report is not None:
                self.state.set_machine(report)


def _nodes(part: Assignment) -> Iterator[str]:
    """The node of each pod, in rank order."""
    for piece in part.slices:
        for name, count in piece.nodes:
            yield from [name] * count


def _machines(cluster: SimulatedCluster) -> Iterator[tuple[Machine, State]]:
    """Every machine with what the pods that are there leave of it."""
    state = ClusterState()
    _fill(state, cluster, machines=cluster.machines)
    for machine in cluster.machines:
        left = state.state_inside(machine.node)
        if left is not None:
            yield machine, left


def _fill(state: ClusterState, cluster: SimulatedCluster, *, machines: tuple[Machine, ...]) -> None:
    for flavor in cluster.flavors:
        state.set_flavor(flavor)
    for node in cluster.nodes:
        state.set_node(node)
    for machine in machines:
        state.set_machine(machine)
    state.cluster.devices.take_over(cluster.devices)
    for pod in cluster.pods:
        state.set_pod(pod)
    # Last: what the machines report counts all the pods that are there by now.
    state.finish_listing()


def main_flavor(state: ClusterState, resource: str) -> Flavor | None:
    """The flavor whose nodes have most of a resource, the first by name among equals."""

    def has(name: str) -> int:
        tree = state.tree(name)
        return sum(state.nodes[node].allocatable.get(resource, 0) for node in tree.names) if tree else 0

    names = sorted(state.flavors)
    return state.flavors[max(names, key=has)] if names else None
