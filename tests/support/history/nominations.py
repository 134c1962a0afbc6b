"""Rooms that kube-scheduler keeps for pods that are nominated to nodes, behind gates too (1.36 and 1.37).

In a third of the histories the controller has rooms kept. At rest one is kept only for a pod that has a slot there, or
gets it once others are gone.
"""

import random
from collections import Counter

from support.history.server import HOSTILE, Json, Server, ended, gated, owner_of
from support.history.stored import HOSTNAME, name_of, planned_of, slices_of


class Nominations:
    """See the module. It has dice of its own."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.on = random.Random(f"nominates {seed}").random() < 1 / 3

    def kept_from(self, pod: Json) -> list[tuple[str, Json]]:
        """The pods of no lower priority that are nominated, each with its node: they count as if they ran there."""
        if not self.on:
            return []
        return [
            (one["status"]["nominatedNodeName"], one)
            for one in self.server.all("pods")
            if one["status"].get("nominatedNodeName")
            and not one["spec"].get("nodeName")
            and not ended(one)
            and one["metadata"]["uid"] != pod["metadata"]["uid"]
            and self._priority(one) >= self._priority(pod)
        ]

    def _priority(self, pod: Json) -> int:
        found = self.server.get("priorityclasses", pod["spec"].get("priorityClassName", ""))
        return int(found["value"]) if found is not None else 0

    def astray(self) -> list[str]:
        """Rooms that are kept for pods that have no slot there."""
        slots: Counter[tuple[str, str]] = Counter()
        for workload in self.server.all("workloads"):
            for one in slices_of(workload) or planned_of(workload):
                slots[owner_of(workload), one.labels[HOSTNAME]] += one.count
        wrong = []
        for pod in self.server.all("pods"):
            node = pod["status"].get("nominatedNodeName")
            if not node or not gated(pod) or (pod["metadata"]["namespace"] == HOSTILE and not self.server.policies):
                continue  # a tenant who writes Workloads himself says what they hold
            slots[owner_of(pod), node] -= 1
            if slots[owner_of(pod), node] < 0:
                wrong.append(f"room is kept for pod {name_of(pod)} on {node}, where it has no slot")
        return wrong
