"""Servers full of admitted workloads, and workloads that preempt there: the queue core's own cycle, and kubelets.

What the controller does with a preemptor, step by step: a cycle plans, the pods of its victims end, a cycle admits it
into the room that was made, and the kubelet of the node that its pod is sent to takes it, or refuses it. Nothing here
chooses anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.cluster.assignment import Assignment, Slice
from engine.cluster.state import ClusterState
from engine.kubelet.machine import Machine, State, TopologyPolicy
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.preemption.model import NodeRoom, Victim
from engine.preemption.model import Rules as VictimRules
from queueing.cycle.cycle import Admitted, Preempting, cycle
from queueing.model import ClusterQueue, LocalQueue, NonPreemptible, Preemption, Rules, Within, Workload, asks_of
from queueing.queues.entry import AssumedAdmission
from queueing.queues.queues import Queues
from simulator.model import NAMESPACE, QUEUE
from simulator.servers import GPU, Instance, InstanceClass, Server, seated, shape_of
from simulator.world.kubelets import Kubelets

FLAVOR: Final = "servers"
MAIN: Final = "main"
ANYWHERE: Final = TopologyRequest(policy=Policy.UNCONSTRAINED)
ONE_NODE: Final = TopologyRequest(policy=Policy.REQUIRED, level=HOSTNAME_LABEL)


@dataclass(frozen=True)
class MadeRoom:
    """What came of one preemption: who had to go, of which priorities, and what the preemptor's kubelet gave it.

    ``refused``: the kubelet's reason, "" where it took the pod; ``crosses``: its GPUs are on several sockets though one
    socket has as many.
    """

    node: str
    victims: tuple[str, ...]
    priorities: tuple[int, ...]
    refused: str
    crosses: bool

    @property
    def hit(self) -> bool:
        """Whether it runs aligned, as Table 4 counts."""
        return not self.refused and not self.crosses


class SaturatedCluster:
    """See the module. Every instance is a workload of one pod, in one queue that preempts lower priorities."""

    def __init__(self, server: Server, instances: Mapping[str, Sequence[Instance]], rules: VictimRules) -> None:
        """``instances``: by node, those that it has."""
        self.state = ClusterState()
        self.queues = Queues(Rules(victims=rules))
        self.queues.set_namespace(NAMESPACE, {})
        self.queues.set_cluster_queue(
            ClusterQueue(name=QUEUE, unlimited=True, preemption=Preemption(within=Within.LOWER))
        )
        self.queues.set_local_queue(LocalQueue(namespace=NAMESPACE, name=QUEUE, cluster_queue=QUEUE))
        self.state.set_flavor(Flavor(name=FLAVOR, levels=(HOSTNAME_LABEL,)))
        machines: list[tuple[Machine, State]] = []
        for name, on in instances.items():
            self.state.set_node(Node(name=name, labels={HOSTNAME_LABEL: name}, allocatable=server.amounts))
            held, left = seated(server, name, on)
            holds = {_key(one): placement for one, placement in held.items()}
            machines.append((Machine(name, server.layout, left, server.ids, holds), left))
            self.state.set_machine(machines[-1][0])
        self.kubelets = Kubelets(machines)
        self._number = 0
        self._server, self._classes = server, dict[str, InstanceClass]()
        for name, on in instances.items():
            for one in on:
                self._started(one.id, one.of, name, one.started)

    def _started(self, name: str, of: InstanceClass, node: str, at: float | None = None) -> None:
        """An instance runs that no cycle placed."""
        workload = self._workload(_key(name), of, ANYWHERE, TopologyPolicy.NONE, at)
        (pod_set,) = workload.pod_sets
        slots = Assignment(
            pod_set=MAIN,
            flavor=FLAVOR,
            levels=(HOSTNAME_LABEL,),
            requests=pod_set.requests,
            slices=(Slice((node,), 1, ((node, 1),)),),
            shape=pod_set.shape,
        )
        grant = AssumedAdmission(QUEUE, {MAIN: 1}, {MAIN: {}}, {}, (slots,), asks_of(workload))
        self.queues.restore(self.state, workload, grant, 0.0)
        self._bind(workload, node)

    def _workload(
        self, key: str, of: InstanceClass, topology: TopologyRequest, wish: TopologyPolicy, at: float | None = None
    ) -> Workload:
        """``at``: when it came; else after all others that came without a time."""
        self._number += 1
        self._classes[key] = of
        pod_set = PodSet(
            name=MAIN,
            count=1,
            requests={name: amount for name, amount in of.requests.items() if name != "pods"},
            topology=topology,
            namespace=NAMESPACE,
            shape=shape_of(of, wish),
        )
        created = float(self._number) if at is None else at
        return Workload(
            key=key,
            namespace=NAMESPACE,
            queue=QUEUE,
            pod_sets=(pod_set,),
            priority=of.priority,
            created=created,
            uid=key,
            non_preemptible=NonPreemptible.NEVER if of.preemptible else NonPreemptible.BY_CLASS,
        )

    def _bind(self, workload: Workload, node: str) -> None:
        """Its pod is on a node whose kubelet took it, and the node says what it holds."""
        (pod_set,), held = workload.pod_sets, self.kubelets.held(node, workload.key)
        self.state.set_pod(
            Pod(
                key=workload.key,
                node=node,
                requests=pod_set.requests,
                namespace=NAMESPACE,
                claim=(workload.key, MAIN),
                shape=pod_set.shape,
                placement=held,
                observed=held is not None,
            )
        )
        self.queues.bind(workload.key, workload.key)

    # -- one more ---------------------------------------------------------------------------------------------

    def plan(
        self,
        name: str,
        of: InstanceClass,
        *,
        topology: TopologyRequest = ANYWHERE,
        wish: TopologyPolicy = TopologyPolicy.NONE,
    ) -> Preempting | Admitted | None:
        """Submit one more instance and have a cycle decide; None where it has to wait, and is forgotten."""
        workload = self._workload(_key(name), of, topology, wish)
        self.queues.submit(workload, 0.0)
        made = cycle(self.state, self.queues, 0.0)
        decisions: list[Preempting | Admitted] = [*made.preempting, *made.admitted]
        for decided in decisions:
            if decided.key == workload.key:
                return decided
        self.queues.forget(self.state, workload.key)
        del self._classes[workload.key]
        return None

    def withdraw(self, decided: Preempting | Admitted) -> None:
        """The preemptor is gone before anybody ended for it: all is as it was before the plan."""
        self.queues.forget(self.state, decided.key)
        del self._classes[decided.key]

    def carry_out(self, decided: Preempting | Admitted) -> MadeRoom:
        """Have the victims' pods end, the preemptor admitted, and its pod arrive at its node."""
        victims = decided.victims if isinstance(decided, Preempting) else ()
        if victims:
            for victim in victims:
                self.end(victim.key)
            admitted = cycle(self.state, self.queues, 0.0).admitted
            assert decided.key in {one.key for one in admitted}  # noqa: S101  (all its victims are gone)
        node = node_of(decided)
        workload = self.queues.entries[decided.key].workload
        refused = self.kubelets.admit(node, workload.key, workload.pod_sets[0].shape)
        if refused:
            self.queues.forget(self.state, workload.key)
            del self._classes[workload.key]
        else:
            self._bind(workload, node)
        self._report(node)
        names = victims_of(decided)
        priorities = tuple(victim.priority for victim in victims)
        return MadeRoom(node, names, priorities, refused, self.kubelets.crosses(node, workload.key, GPU))

    def sent(self, name: str, of: InstanceClass, node: str, victims: Sequence[str]) -> MadeRoom:
        """Have a scheduler that knows nothing of insides evict these instances of a node, and send one more there."""
        priorities = tuple(self._classes[_key(victim)].priority for victim in victims)
        for victim in victims:
            self.end(_key(victim))
        key, shape = _key(name), shape_of(of, TopologyPolicy.NONE)
        refused = self.kubelets.admit(node, key, shape)
        if not refused:
            self._started(name, of, node)
        self._report(node)
        return MadeRoom(node, tuple(victims), priorities, refused, self.kubelets.crosses(node, key, GPU))

    def rooms(self) -> list[NodeRoom]:
        """The servers as a search inside nodes looks at them: what kubelets hold, and who may be evicted there."""
        layout, on = self._server.layout, dict[str, list[Victim]]()
        for key, of in self._classes.items():
            node = self.state.pods[key].node
            if of.preemptible:
                name, held = key.removeprefix(_key("")), self.kubelets.held(node, key)
                on.setdefault(node, []).append(Victim(name, of.priority, of.requests, held))
        ids = self._server.ids
        return [
            NodeRoom(name, self.state.free(name), tuple(on.get(name, ())), layout, self.state.inside(name), ids)
            for name in self.state.nodes
        ]

    def running(self) -> Iterator[InstanceClass]:
        """The class of every instance."""
        yield from self._classes.values()

    def crossing(self) -> int:
        """How many instances have GPUs of several sockets though one socket has as many."""
        return sum(crosses for _, _, crosses in self.kubelets.instances(GPU))

    def end(self, key: str) -> None:
        """A workload's pod ends, and it gives back all it held."""
        del self._classes[key]
        node = self.state.pods[key].node
        self.kubelets.remove(node, key)
        self.state.remove_pod(key)
        self.queues.unbind(key)
        self.queues.forget(self.state, key)
        self._report(node)

    def _report(self, node: str) -> None:
        """The node's agent publishes what is there now."""
        report = self.kubelets.report(node)
        if report is not None:
            self.state.set_machine(report)


def node_of(decided: Preempting | Admitted) -> str:
    """Where the preemptor's pod is to go."""
    ((node, _),) = (on for part in decided.grant.assignments for piece in part.slices for on in piece.nodes)
    return node


def victims_of(decided: Preempting | Admitted) -> tuple[str, ...]:
    """The instances that are to go for it."""
    found = decided.victims if isinstance(decided, Preempting) else ()
    return tuple(victim.key.removeprefix(_key("")) for victim in found)


def _key(name: str) -> str:
    return f"{NAMESPACE}/{name}"
