"""Servers full of admitted workloads, and workloads that preempt there: the queue core's own cycle, and kubelets.

What the controller does with a preemptor, step by step: a cycle plans, the pods of its victims end, a cycle admits it
into the room that was made, and the kubelet of the node that its pod is sent to takes it, or refuses it. So too where
a service grows, whose instances are pods of one workload. Nothing here chooses anything.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from engine.cluster.assignment import Assignment, Slice
from engine.cluster.state import ClusterState
from engine.kubelet.machine import Machine, State, TopologyPolicy
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.preemption.model import ChoiceRules as VictimRules
from engine.preemption.model import NodeRoom, VictimPod
from queueing.cycle.cycle import Admitted, Preempting, cycle
from queueing.model import ClusterQueue, LocalQueue, NonPreemptible, Preemption, Rules, Within, Workload, asks_of
from queueing.queues.entry import AssumedAdmission
from queueing.queues.queues import Queues
from simulator.model import NAMESPACE, QUEUE
from simulator.servers import GPU, Instance, InstanceClass, Server, seated, shape_of
from simulator.world.kubelets import Kubelets

FLAVOR: Final = "servers"
MAIN: Final = "main"
PREEMPTOR: Final = "preemptor"  # in no namespace, so it is no instance
ANYWHERE: Final = TopologyRequest(policy=Policy.UNCONSTRAINED)
ONE_NODE: Final = TopologyRequest(policy=Policy.REQUIRED, level=HOSTNAME_LABEL)


class MadeRoom(msgspec.Struct, frozen=True):
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
    """See the module. All instances are in one queue that preempts lower priorities."""

    def __init__(
        self,
        server: Server,
        instances: Mapping[str, Sequence[Instance]],
        rules: VictimRules,
        services: Collection[InstanceClass] = (),
    ) -> None:
        """``instances``: by node, those that it has. Each is a workload of one pod, those of a service one together."""
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
            # The report names the pods by their keys, so the state
            # does not charge them a second time when they are bound.
            holds = {_key(one): placement for one, placement in held.items()}
            machines.append((Machine(name, server.layout, left, server.ids, holds), left))
            self.state.set_machine(machines[-1][0])
        self.kubelets = Kubelets(machines)
        self._number = 0
        self._server = server
        self._asked = dict[str, InstanceClass]()  # by workload
        self._classes = dict[str, InstanceClass]()  # by pod
        self._pods = dict[str, list[str]]()  # by workload
        for name, on in instances.items():
            for one in on:
                if one.of not in services:
                    self._add_running(_key(one.id), one.of, {_key(one.id): name}, one.started)
        for of in services:
            pods = {_key(one.id): name for name, on in instances.items() for one in on if one.of == of}
            self._add_running(_service(of), of, pods)

    def _add_running(self, key: str, of: InstanceClass, pods: Mapping[str, str], at: float | None = None) -> None:
        """A workload runs that no cycle placed. ``pods``: the node of each."""
        workload = self._workload(key, of, ANYWHERE, TopologyPolicy.NONE, at, len(pods))
        (pod_set,) = workload.pod_sets
        slots = Assignment(
            pod_set=MAIN,
            flavor=FLAVOR,
            levels=(HOSTNAME_LABEL,),
            requests=pod_set.requests,
            slices=tuple(Slice((node,), n, ((node, n),)) for node, n in sorted(Counter(pods.values()).items())),
            shape=pod_set.shape,
        )
        grant = AssumedAdmission(QUEUE, {MAIN: len(pods)}, {MAIN: {}}, {}, (slots,), asks_of(workload))
        self.queues.restore_workload(self.state, workload, grant, 0.0)
        for pod, node in pods.items():
            self._bind(workload, pod, node)

    def _workload(  # noqa: PLR0917  (all that an instance differs in)
        self,
        key: str,
        of: InstanceClass,
        topology: TopologyRequest,
        wish: TopologyPolicy,
        at: float | None = None,
        count: int = 1,
    ) -> Workload:
        """``at``: when it came; else after all others that came without a time."""
        self._number += 1
        self._asked[key] = of
        pod_set = PodSet(
            name=MAIN,
            count=count,
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

    def _bind(self, workload: Workload, pod: str, node: str) -> None:
        """A pod of it is on a node whose kubelet took it, and the node says what it holds."""
        self._classes[pod] = self._asked[workload.base]
        self._pods.setdefault(workload.base, []).append(pod)
        (pod_set,), held = workload.pod_sets, self.kubelets.placement_of_pod(node, pod)
        self.state.set_pod(
            Pod(
                key=pod,
                node=node,
                requests=pod_set.requests,
                namespace=NAMESPACE,
                claim=(workload.base, MAIN),
                shape=pod_set.shape,
                placement=held,
                observed=held is not None,
            )
        )
        self.queues.bind(pod, workload.base)

    # -- one more ---------------------------------------------------------------------------------------------

    def plan(
        self,
        name: str | None,
        of: InstanceClass,
        *,
        topology: TopologyRequest = ANYWHERE,
        wish: TopologyPolicy = TopologyPolicy.NONE,
    ) -> Preempting | Admitted | None:
        """Submit one more instance and have a cycle decide; None where it has to wait, and is forgotten.

        ``name``: None where instances may have any name; it is only asked for then.
        """
        workload = self._workload(PREEMPTOR if name is None else _key(name), of, topology, wish)
        self.queues.submit(workload, 0.0)
        made = cycle(self.state, self.queues, 0.0)
        decisions: list[Preempting | Admitted] = [*made.preempting, *made.admitted]
        for decided in decisions:
            if decided.key == workload.base:
                return decided
        self._forget_workload(workload.base)
        return None

    def withdraw(self, decided: Preempting | Admitted) -> None:
        """The preemptor is gone before anybody ended for it: all is as it was before the plan."""
        self._forget_workload(decided.key)

    def carry_out(self, decided: Preempting | Admitted) -> MadeRoom:
        """Have the victims' pods end, the preemptor admitted, and its pod arrive at its node."""
        victims = decided.victims if isinstance(decided, Preempting) else ()
        if victims:
            for victim in victims:
                self.end_workload(str(victim.key))
            made = cycle(self.state, self.queues, 0.0)
            got = {one.key for one in made.admitted} | {one.key for one in made.resized}
            assert decided.key in got  # noqa: S101  (all its victims are gone)
        node = node_of(decided)
        workload = self.queues.entries[decided.key].workload
        # A service has pods already, so one more needs a name of its own.
        pod = f"{workload.base}-{self._number}" if workload.base in self._pods else workload.base
        refused = self.kubelets.admit_arrival(node, pod, workload.pod_sets[0].shape)
        if not refused:
            self._bind(workload, pod, node)
        # A service stays though its new pod was refused, because its other pods run.
        elif workload.base not in self._pods:
            self._forget_workload(workload.base)
        self._report(node)
        names = victims_of(decided)
        priorities = tuple(victim.priority for victim in victims)
        return MadeRoom(node, names, priorities, refused, self.kubelets.crosses(node, pod, GPU))

    def add_instance(self, of: InstanceClass) -> MadeRoom | None:
        """One more instance of a service, as its autoscaler asks for it; None where no victims make room for it."""
        key, self._number = _service(of), self._number + 1
        grant = self.queues.entries[key].grant
        assert grant is not None  # noqa: S101  (services run)
        self.queues.wish(key, {MAIN: grant.counts[MAIN] + 1})
        decided = next((one for one in cycle(self.state, self.queues, 0.0).preempting if one.key == key), None)
        if decided is None:
            # The wish is withdrawn, or the next cycle would go on looking for victims for it.
            self.queues.wish(key, None)
            return None
        return self.carry_out(decided)

    def send_instance(self, name: str, of: InstanceClass, node: str, victims: Sequence[str]) -> MadeRoom:
        """Have a scheduler that knows nothing of insides evict these instances of a node, and send one more there."""
        priorities = tuple(self._classes[_key(victim)].priority for victim in victims)
        for victim in victims:
            self.end_workload(_key(victim))
        key, shape = _key(name), shape_of(of, TopologyPolicy.NONE)
        refused = self.kubelets.admit_arrival(node, key, shape)
        if not refused:
            self._add_running(key, of, {key: node})
        self._report(node)
        return MadeRoom(node, tuple(victims), priorities, refused, self.kubelets.crosses(node, key, GPU))

    def rooms(self) -> list[NodeRoom]:
        """The servers as a search inside nodes looks at them: what kubelets hold, and who may be evicted there."""
        layout, on = self._server.layout, dict[str, list[VictimPod]]()
        for key, of in self._classes.items():
            node = self.state.pods[key].node
            if of.preemptible:
                name, held = key.removeprefix(_key("")), self.kubelets.placement_of_pod(node, key)
                on.setdefault(node, []).append(VictimPod(name, of.priority, of.requests, held))
        ids = self._server.ids
        return [
            NodeRoom(
                name, self.state.free_on_node(name), tuple(on.get(name, ())), layout, self.state.state_inside(name), ids
            )
            for name in self.state.nodes
        ]

    def running(self) -> Iterator[InstanceClass]:
        """The class of every instance."""
        yield from self._classes.values()

    def crossing(self) -> int:
        """How many instances have GPUs of several sockets though one socket has as many."""
        return sum(crosses for _, _, crosses in self.kubelets.instances(GPU))

    def end_workload(self, key: str) -> None:
        """A workload's pods end, and it gives back all it held."""
        # Noted before the pods are gone: their nodes publish what is left only after all of them have ended.
        pods = {pod: self.state.pods[pod].node for pod in self._pods.pop(key)}
        for pod, node in pods.items():
            del self._classes[pod]
            self.kubelets.remove(node, pod)
            self.state.remove_pod(pod)
            self.queues.unbind(pod)
        self._forget_workload(key)
        for node in dict.fromkeys(pods.values()):
            self._report(node)

    def _forget_workload(self, key: str) -> None:
        """A workload is gone."""
        self.queues.remove_workload(self.state, key)
        del self._asked[key]

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
    return tuple(str(victim.key).removeprefix(_key("")) for victim in found)


def _service(of: InstanceClass) -> str:
    """The workload of a service; classes are told apart by their priorities."""
    return _key(f"service-{of.priority}")


def _key(name: str) -> str:
    return f"{NAMESPACE}/{name}"
