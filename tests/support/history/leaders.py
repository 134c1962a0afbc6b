"""The LeaderWorkerSet controller of the simulated cluster: one change a step.

Facts of leaderworkerset.x-k8s.io: each group has a leader, `NAME-GROUP`, and workers, `NAME-GROUP-INDEX`, which come
once the leader is there, or only when it is ready. Where the restart policy is to make the group anew, a pod that ends
or is deleted takes the others of its group with it. Pods are controlled by StatefulSets, which are left out here.
"""

import random
from typing import Any

from support.history.server import GATE, LEADER_SET, Json, Refused, Server, ended, groups_of, owner_of, parent_of

from crds.constants import WORKER_INDEX
from ungater.leaders import GROUP, NAME


class LeaderSets:
    """See the module's rules."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.server = server
        self.rng = rng

    def step(self, *, all_end: bool) -> bool:
        """One change of a LeaderWorkerSet's pods; ``all_end``: it is deleted once a group of it runs."""
        found = list(self.server.all("leaderworkersets"))
        self.rng.shuffle(found)
        return any(self._set(each, all_end=all_end) for each in found)

    def _set(self, whole: Json, *, all_end: bool) -> bool:
        pods = [pod for pod in self.server.all("pods") if parent_of(pod) == whole["metadata"]["uid"]]
        groups = groups_of(whole)
        known = {group["metadata"]["uid"] for group in groups}
        if self._drop([pod for pod in pods if owner_of(pod) not in known]):
            return True
        for group in groups:
            own = {pod["metadata"]["name"]: pod for pod in pods if owner_of(pod) == group["metadata"]["uid"]}
            running = sum(pod["status"]["phase"] == "Running" for pod in own.values())
            if all_end and running == _size(whole):
                self.server.delete(whole, "user")
                return True
            if self._group(whole, group["metadata"]["name"], own):
                return True
        return False

    def _group(self, whole: Json, name: str, pods: dict[str, Json]) -> bool:
        there = list(pods.values())
        going = [pod for pod in there if ended(pod) or pod["metadata"].get("deletionTimestamp")]
        if self._drop(there if going and whole["spec"]["recreate"] else going):
            return True
        namespace = whole["metadata"]["namespace"]
        leader = self.server.get("pods", name, namespace)
        if leader is None:
            return self._make(whole, name, 0)
        if whole["spec"]["waits"] and leader["status"]["phase"] != "Running":
            return False
        for index in range(1, _size(whole)):
            if not going and self.server.get("pods", f"{name}-{index}", namespace) is None:
                return self._make(whole, name, index)
        return False

    def _drop(self, pods: list[Json]) -> bool:
        there = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        if not there:
            return False
        self.server.delete(self.rng.choice(there), "set controller")
        return True

    def _make(self, whole: Json, group: str, index: int) -> bool:
        meta, templates = whole["metadata"], whole["spec"]["leaderWorkerTemplate"]
        template: Any = templates["workerTemplate"]
        if not index and "leaderTemplate" in templates:
            template = templates["leaderTemplate"]
        labels = {NAME: meta["name"], GROUP: group.rpartition("-")[2], WORKER_INDEX: str(index)}
        reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": group, "uid": f"set-of-{meta['uid']}"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{group}-{index}" if index else group,
                "namespace": meta["namespace"],
                "labels": {**template["metadata"]["labels"], **labels},
                "annotations": {**template["metadata"]["annotations"], LEADER_SET: meta["uid"]},
                "ownerReferences": [{**reference, "controller": True}],
            },
            "spec": {**template["spec"], "schedulingGates": [{"name": GATE}]},
            "status": {"phase": "Pending"},
        }
        try:
            self.server.create("pods", pod, "set controller")
        except Refused:
            return False
        return True


def _size(whole: Json) -> int:
    size: int = whole["spec"]["leaderWorkerTemplate"]["size"]
    return size
