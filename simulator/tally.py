"""What is measured while a simulation runs: who takes how much of one resource on which server, and what that leaves.

Servers are the nodes of the flavor that has most of the resource, in tree order. What pods that were there already take
counts as used. A server is idle where no job has a pod and nobody holds devices; other pods that were there do not
count, because DaemonSets are everywhere.
"""

from typing import Final

import numpy as np

from engine.cluster.state import ClusterState
from engine.model import Policy as Wish
from simulator.fragments import fragments, level_names
from simulator.model import SchedulingPolicy, SimulatedJob
from simulator.results import Ints, JobOutcome, PodDevices, Result, UsageSeries
from simulator.world.kubelets import Kubelets
from simulator.world.site import Where, main_flavor

GPU: Final = "nvidia.com/gpu"


def measured(state: ClusterState) -> str:
    """The resource that matters most: GPUs, else the device of which there are most, else cpu."""
    amounts: dict[str, int] = {}
    for node in state.nodes.values():
        for name, amount in node.allocatable.items():
            if "/" in name and amount:
                amounts[name] = amounts.get(name, 0) + amount
    # GPUs first, however few: other devices, such as network cards, are often there in greater number.
    if GPU in amounts:
        return GPU
    return max(sorted(amounts), key=lambda name: amounts[name]) if amounts else "cpu"


class JobTally:
    """See the module; ``state`` as it is when the simulation begins."""

    def __init__(self, state: ClusterState) -> None:
        self.resource = measured(state)
        flavor = main_flavor(state, self.resource)
        tree = state.tree(flavor.name) if flavor is not None else None
        if tree is None or not tree.size:
            raise ValueError("no flavor has a node: nothing can be simulated")
        self._tree = tree
        self._at = {name: leaf for leaf, name in enumerate(tree.names)}
        usable = [state.nodes[name].ready and not state.nodes[name].unschedulable for name in tree.names]
        have = [state.nodes[name].allocatable.get(self.resource, 0) for name in tree.names]
        self.capacity: Ints = np.where(usable, have, 0).astype(np.int64)
        left = [max(state.free_on_node(name).get(self.resource, 0), 0) for name in tree.names]
        self.used: Ints = np.maximum(self.capacity - np.array(left, np.int64), 0)
        self.pods: Ints = np.zeros(tree.size, np.int64)  # of jobs, by server
        # DaemonSets take CPUs on every server, so CPUs in use bar none from being idle; devices in use do.
        self._barred = ~np.array(usable) | (self.used > 0 if "/" in self.resource else False)
        self._waiting = self._wanted = self._running = 0
        self.series = UsageSeries()
        self.levels = tuple(level_names(tree))

    def amount(self, job: SimulatedJob) -> int:
        """Of the resource, all pods of a job together."""
        return sum(pod_set.requests.get(self.resource, 0) * pod_set.count for pod_set in job.pod_sets)

    def waits(self, job: SimulatedJob, sign: int) -> None:
        """One more waits, or one less."""
        self._waiting += sign
        self._wanted += sign * self.amount(job)

    def count_running(self, sign: int) -> None:
        """One more job runs, or one less."""
        self._running += sign

    def count_nodes_taken(self, where: Where, sign: int) -> None:
        """A job's pods take their nodes, or give them back."""
        for _, pod_set, node in where.pods:
            leaf = self._at.get(node)
            # Pods on nodes of other flavors are not measured.
            if leaf is not None:
                self.used[leaf] += sign * pod_set.requests.get(self.resource, 0)
                self.pods[leaf] += sign

    def spread(self, job: SimulatedJob, where: Where) -> tuple[dict[str, int], bool | None]:
        """(domains that the pods are in, by level; whether each pod set is in one domain of the level it wishes)."""
        leaves = [(pod_set, self._at[node]) for _, pod_set, node in where.pods if node in self._at]
        owners = dict(zip(self.levels, self._tree.owners, strict=True))
        domains = {level: len({int(owner[leaf]) for _, leaf in leaves}) for level, owner in owners.items()}
        aligned: bool | None = None
        for pod_set in job.pod_sets:
            level = pod_set.topology.level
            if pod_set.topology.policy is Wish.UNCONSTRAINED or level not in owners:
                continue
            own = {int(owners[level][leaf]) for mine, leaf in leaves if mine.name == pod_set.name}
            aligned = (aligned is not False) and len(own) == 1
        return domains, aligned

    def row(self, now: float) -> None:
        """What things are like now."""
        series = self.series
        free = np.maximum(self.capacity - self.used, 0)
        idle = (self.pods == 0) & ~self._barred
        series.times.append(now)
        # A copy: the array itself goes on changing with the next event.
        series.used.append(self.used.copy())
        series.running.append(self._running)
        series.waiting.append(self._waiting)
        series.wanted.append(self._wanted)
        series.levels.append(fragments(self._tree, free, idle))

    def instances(self, kubelets: Kubelets) -> tuple[PodDevices, ...]:
        """Who holds which devices now."""
        found = kubelets.instances(self.resource)
        return tuple(
            PodDevices(self._at[node], devices, crosses) for node, devices, crosses in found if node in self._at
        )

    def result(self, policy: SchedulingPolicy, outcomes: tuple[JobOutcome, ...], window: float) -> Result:
        """All of it."""
        servers = tuple(self._tree.names)
        return Result(policy, self.resource, servers, self.capacity, self.levels, outcomes, self.series, window)
