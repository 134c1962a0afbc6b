"""The LeaderWorkerSet controller of the simulated cluster: one change a step.

Facts of leaderworkerset.x-k8s.io: each group has a leader, `NAME-GROUP`, and workers, `NAME-GROUP-INDEX`, which come
once the leader is there, or only when it is ready. Where the restart policy is to make the group anew, a pod that ends
or is deleted takes the others of its group with it. Pods are controlled by StatefulSets, which are left out here: a pod
that says itself that the set is its owner is nobody's. What the templates were is kept as a ControllerRevision, whose
hash is on the pods: after an edit the groups are deleted and made anew from the last one down, the next where no more
than one is away, and one that is not ready at once. Workers are made as their leader was, and go with it.
"""

import random
from typing import Any
from zlib import crc32

from support.history.server import (
    GATE,
    LEADER_SET,
    Json,
    Refused,
    Server,
    encode,
    ended,
    groups_of,
    owner_of,
    parent_of,
    revision_name,
)

from crds.constants import WORKER_INDEX
from ungater.leaders import API_VERSION, GROUP, KIND, NAME, REVISION


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
        uid = whole["metadata"]["uid"]
        pods = [pod for pod in self.server.all("pods") if _made(pod) and parent_of(pod) == uid]
        if self._keep(whole):
            return True
        groups = groups_of(self.server, whole)
        known = {group["metadata"]["uid"] for group in groups}
        if self._drop([pod for pod in pods if owner_of(pod) not in known]) or self._roll(whole, pods):
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

    def _keep(self, whole: Json) -> bool:
        """Keep what its templates are."""
        meta, name = whole["metadata"], revision_name(whole, _revision(whole))
        if self.server.get("controllerrevisions", name, meta["namespace"]) is not None:
            return False
        reference = {"kind": KIND, "apiVersion": API_VERSION, "name": meta["name"], "uid": meta["uid"]}
        revision = {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": {NAME: meta["name"], REVISION: _revision(whole)},
                "ownerReferences": [{**reference, "controller": True}],
            },
            "data": {"spec": {"leaderWorkerTemplate": whole["spec"]["leaderWorkerTemplate"]}},
        }
        self.server.create("controllerrevisions", revision, "set controller")
        return True

    def _roll(self, whole: Json, pods: list[Json]) -> bool:
        """Delete a group that is not as the set is now, as `rollingUpdatePartition` and the StatefulSet have it."""
        now, count = _revision(whole), whole["spec"]["replicas"]
        uids = [f"{whole['metadata']['uid']}/{group}" for group in range(count)]
        groups = [[pod for pod in pods if owner_of(pod) == uid] for uid in uids]
        old = [any(_hash(pod) != now for pod in group) for group in groups]
        ready = [sum(pod["status"]["phase"] == "Running" for pod in group) == _size(whole) for group in groups]
        done = next((at for at in range(count) if old[-1 - at] or not ready[-1 - at]), count)
        least = max(0, count - done - 1)
        first = least + ready[:least].count(False)
        for at in range(min(first, count - 1), least - 1, -1):
            if ready[at] and old[at]:
                break
            first = at
        for at in range(count - 1, first - 1, -1):
            if old[at]:
                return self._drop([pod for pod in groups[at] if _hash(pod) != now])
            if not ready[at]:
                return False
        return False

    def _group(self, whole: Json, name: str, pods: dict[str, Json]) -> bool:
        there = list(pods.values())
        if name in pods and self._drop([pod for pod in there if _hash(pod) != _hash(pods[name])]):
            return True
        going = [pod for pod in there if ended(pod) or pod["metadata"].get("deletionTimestamp")]
        if self._drop(there if going and whole["spec"]["recreate"] else going):
            return True
        namespace = whole["metadata"]["namespace"]
        leader = self.server.get("pods", name, namespace)
        if leader is None:
            return self._make(whole, name, 0)
        waits = whole["spec"]["waits"] and leader["status"]["phase"] != "Running"
        if waits or name not in pods:  # somebody may have taken it from its set, and it has the name still
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
        revision = _revision(whole)
        if index and (leader := self.server.get("pods", group, meta["namespace"])) is not None:
            revision = _hash(leader)
            kept = self.server.get("controllerrevisions", revision_name(whole, revision), meta["namespace"])
            if kept is None:
                return False  # the leader is that of another set of this name, and on its way out
            templates = kept["data"]["spec"]["leaderWorkerTemplate"]
        template: Any = templates["workerTemplate"]
        if not index and "leaderTemplate" in templates:
            template = templates["leaderTemplate"]
        labels = {NAME: meta["name"], GROUP: group.rpartition("-")[2], WORKER_INDEX: str(index), REVISION: revision}
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


def _made(pod: Json) -> bool:
    """Whether a LeaderWorkerSet's StatefulSet made it, and has it still."""
    return LEADER_SET in (pod["metadata"].get("annotations") or {})


def _hash(pod: Json) -> str:
    """Of the templates that it was made from; "" where it does not say."""
    return str((pod["metadata"].get("labels") or {}).get(REVISION, ""))


def _revision(whole: Json) -> str:
    """The hash of its templates."""
    return f"{crc32(encode(whole['spec']['leaderWorkerTemplate'], order='sorted')):x}"


def _size(whole: Json) -> int:
    size: int = whole["spec"]["leaderWorkerTemplate"]["size"]
    return size
