"""Nothing runs that no quota paid for: what each pod was let go for, and what queues are charged meanwhile.

- A pod is let go for a Workload that is admitted, in the queue that the pod names, and takes no more than was given.
- At no time more of a Workload's pods run than were admitted, whatever they are called by then.
- A pod that was let go takes of its queue until it ends, or terminates where nobody ends it: what is admitted anew fits
  beside it, though its Workload may be gone, and its owner or its labels be others.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from support.history.actors import TOTAL, requests, takes
from support.history.policies import ADMITTED_QUOTA, WRITTEN
from support.history.server import (
    CONTROLLER,
    GROUP,
    HOSTILE,
    MARK,
    NAMESPACE,
    POD_GROUPS,
    QUEUE,
    Json,
    Key,
    Server,
    ended,
    gated,
    named_by,
    over,
    owner_of,
    owners,
)
from support.history.stored import admission_of, cpu_of, holds, last_of, name_of, usage_of

if TYPE_CHECKING:
    from support.history.judge import Judge


class Let(NamedTuple):
    """By what a pod runs: the Workload, its queue, and what the pod takes."""

    workload: str
    queue: str
    cpu: int
    owners: tuple[str, ...]  # as it named them then


class Payers:
    """See the module's rules. ``let``: pods that the controller let go, by uid, until they are gone."""

    def __init__(self, server: Server, judge: "Judge") -> None:
        self.server = server
        self._judge = judge
        self.let: dict[str, Let] = {}
        self.spoiled: dict[str, Let] = {}  # whose pods somebody had say something else since: they are charged, or not
        self._went_on: dict[str, str] = {}  # the last queue of a Workload that they said they run by, as that ended
        self._made_for: dict[tuple[str, str], str] = {}  # uid of the owner, by Workload
        self._last: dict[tuple[str, str], Json] = {}  # Workloads that were deleted, by namespace and name

    def changed(self, key: Key, old: Json | None, new: Json | None, who: str) -> Iterator[str]:
        """One change was made."""
        kind = key[0]
        if kind == "workloads" and old is None and new is not None and who == CONTROLLER:
            self._made_for[key[1:]] = owner_of(new)
        if kind == "workloads" and admission_of(new or {}) is None:
            self._go_on_without(key, admission_of(old or {}))
        if kind == "workloads" and old is not None and new is None:
            self._last[key[1:]] = last_of(old, self._last.get(key[1:], old))
        if kind != "pods" or old is None:
            return
        if new is None:
            self.let.pop(old["metadata"]["uid"], None)
            self.spoiled.pop(old["metadata"]["uid"], None)
            self._went_on.pop(old["metadata"]["uid"], None)
        elif who == CONTROLLER and not gated(new) and (gated(old) or _said(old, MARK) != _said(new, MARK)):
            yield from self._goes(new)  # or goes on, for another Workload: one of its own, where its owner let it go
        elif who != CONTROLLER and any(_said(old, name) != _said(new, name) for name in WRITTEN):
            self._spoil(new["metadata"]["uid"])

    def _spoil(self, uid: str) -> None:
        """A pod does not say any more by what it runs."""
        if (let := self.let.pop(uid, None)) is not None:
            self.spoiled[uid] = let

    def _go_on_without(self, key: Key, admission: Json | None) -> None:
        """A Workload gives back what it held: pods that somebody had say that they run by it go on in its queue.

        Where no policy forbids that, such a pod counts as one of its own, and one that does not say by which quota it
        runs is charged by the queue of its Workload as that ended.
        """
        for pod in self.server.within("pods", key[1]) if admission is not None else ():
            if pod["metadata"]["uid"] in self.spoiled and _said(pod, MARK) == key[2]:
                self._went_on[pod["metadata"]["uid"]] = admission.get("clusterQueue", "")

    def may_take(self, pod: Json, queue: str) -> int:
        """The most that a queue may be charged for a pod that was not let go by it, as far as anybody knows."""
        uid = pod["metadata"]["uid"]
        spoiled = self.spoiled.get(uid)
        was = spoiled.cpu if spoiled is not None and spoiled.queue == queue else 0
        says = "clusterQueue" in (_said(pod, ADMITTED_QUOTA) or "")  # then that counts
        went_on = takes(pod)["cpu"] if not says and self._went_on.get(uid) == queue else 0
        return max(believed(pod, queue), was, went_on)

    def _goes(self, pod: Json) -> Iterator[str]:
        meta, name = pod["metadata"], name_of(pod)
        mark = (meta.get("annotations") or {}).get(MARK)
        there = self.server.get("workloads", mark, meta["namespace"])
        workload = there or self._last.get((meta["namespace"], mark))
        if workload is None:
            yield f"pod {name} was let go for {mark}, which never was"
            return
        last = self._last.get((meta["namespace"], mark))  # deleted by somebody, and about to be written again
        admission = admission_of(workload) or (admission_of(last) if last is not None else None)
        if admission is None:
            if there is not None:
                yield f"pod {name} was let go for {mark}, which is not admitted"
            return
        queue, cpu = admission.get("clusterQueue", ""), requests(pod["spec"])["cpu"]
        named = set(named_by(pod))
        if named and not named & {each["metadata"]["uid"] for each in self.server.objects.values()}:
            return  # sent before it was seen that its owner is gone: it is charged once it is seen to have gone
        self.let[meta["uid"]] = Let(name_of(workload), queue, cpu, _whose(pod))
        if not queue or meta.get("deletionTimestamp"):
            return
        most = max(
            usage_of({"podSetAssignments": [part]}) // max(1, part["count"]) for part in admission["podSetAssignments"]
        )
        if cpu > most:
            yield f"pod {name} asks for {cpu} cpu, and {mark} was given {most} for each"
        label = (meta.get("labels") or {}).get(QUEUE)
        if self.server.policies and label and f"cq-{label}" != queue and not mark.startswith(("job-", "jobset-")):
            yield f"pod {name} names queue {label}, and {mark} was admitted in {queue}"
        ours = there is not None and admission_of(there) and meta["namespace"] == HOSTILE  # of others slots are counted
        if ours and (runs := self._runs_by(there, queue)) > cpu_of(there):
            yield f"{runs} cpu run for {name_of(there)}, which was given {cpu_of(there)}"

    def _going(self) -> Iterator[tuple[Json, Let]]:
        """The pods that were let go and run, or may."""
        for pod in self.server.all("pods"):
            let = self.let.get(pod["metadata"]["uid"])
            if let is not None and holds(pod) and not ended(pod) and not self._judge.forsaken(pod):
                yield pod, let

    def taken_away(self, pod: Json) -> bool:
        """Whether somebody took a tenant's pod away from its owner since it was let go: another one has its slot."""
        let = self.let.get(pod["metadata"]["uid"])
        return pod["metadata"]["namespace"] == HOSTILE and let is not None and _whose(pod) != let.owners

    def _group_is_done(self, owner: Json) -> bool:
        """Whether as many pods of a pod group are done as these say that it has: it is over until others come."""
        meta = owner["metadata"]
        pods = [
            pod
            for pod in self.server.all("pods")
            if pod["metadata"]["namespace"] == meta["namespace"]
            and (pod["metadata"].get("labels") or {}).get(GROUP) == meta["name"]
        ]
        done = owner["kind"] == POD_GROUPS.kind and bool(pods) and all(map(ended, pods))
        return done and any(_said(pod, TOTAL) == str(len(pods)) for pod in pods)

    def _runs_by(self, workload: Json, queue: str) -> int:
        """What pods take that run by a Workload, but for those that were taken from its owner since."""
        by, owner = (name_of(workload), queue), owner_of(workload)
        return sum(
            let.cpu
            for pod, let in self._going()
            if let[:2] == by and not self._judge.astray(pod) and owner_of(pod) == owner and _whose(pod) == let.owners
        )

    def runs_for(self, namespace: str, mark: str) -> bool:
        """Whether a pod runs that was let go for a Workload of this name, or that somebody had say so since."""
        if any(_said(pod, MARK) == mark for pod, _ in self._going() if pod["metadata"]["namespace"] == namespace):
            return True
        for pod in self.server.all("pods"):
            meta = pod["metadata"]
            if ended(pod):
                continue
            said, let = meta["namespace"] == namespace and _said(pod, MARK) == mark, self.spoiled.get(meta["uid"])
            if let is not None and (said or let.workload == f"{namespace}/{mark}"):
                return True
            if said and not gated(pod) and holds(pod) and meta["uid"] not in self.let:  # its owner was made up
                return True
        return False

    def running(self) -> Counter:
        """What pods take that run, by the Workload for which they were let go, and its queue.

        Of one that was resized the less of both: what it was let go with, and what it takes now.
        """
        found: Counter = Counter()
        for pod, let in self._going():
            found[let.workload, let.queue] += min(let.cpu, takes(pod)["cpu"])
        return found

    def running_now(self) -> Counter:
        """What pods take that run, with all that they were given since, by queue."""
        found: Counter = Counter()
        for pod, let in self._going():
            found[let.queue] += takes(pod)["cpu"]
        return found

    def used(self) -> Counter:
        """What is taken of each queue, by stored admissions, and by what runs beyond them."""
        admitted: Counter = Counter()
        wanting = {
            each["metadata"]["uid"]: each["metadata"]["name"]
            for namespace in (HOSTILE, NAMESPACE)
            for each in owners(self.server, namespace)
            if not over(each) and not each["metadata"].get("deletionTimestamp") and not self._group_is_done(each)
        }
        for workload in self.server.all("workloads"):
            name, admission = wanting.get(owner_of(workload)), admission_of(workload)
            meta = workload["metadata"]
            made_for = self._made_for.get((meta.get("namespace", ""), meta["name"]), owner_of(workload))
            # What names another's owner, as somebody wrote it so, is not of that one's name, or was made for another.
            if (
                name is not None
                and admission is not None
                and f"-{name}-" in meta["name"]
                and made_for == owner_of(workload)
                and _names_its_kind(workload)
            ):
                admitted[name_of(workload), admission.get("clusterQueue", "")] += usage_of(admission)
        used: Counter = Counter()
        for (_, queue), cpu in (admitted | self.running()).items():
            used[queue] += cpu
        return used


def _whose(pod: Json) -> tuple[str, ...]:
    """All whom a pod names as its owners, by kind too: one of another kind is another owner, whatever uid it says."""
    kinds = sorted({str(ref.get("kind")) for ref in pod["metadata"].get("ownerReferences") or ()})
    return *named_by(pod), *kinds


def _names_its_kind(workload: Json) -> bool:
    """Whether its controlling owner is of the kind that it was made for; another kind may be written with its uid."""
    meta = workload["metadata"]
    kinds = [ref.get("kind", "") for ref in meta.get("ownerReferences") or () if ref.get("controller")]
    return all(kind.lower() == meta["name"].partition("-")[0] for kind in kinds)


def believed(pod: Json, queue: str) -> int:
    """What a pod takes that says that it runs by a queue; 0 where it does not."""
    return takes(pod)["cpu"] if f'"{queue}"' in (_said(pod, ADMITTED_QUOTA) or "") else 0


def _said(pod: Json, name: str) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(name)
