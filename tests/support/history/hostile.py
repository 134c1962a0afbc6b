"""A tenant who wants what is not his, in a namespace of his own, with the rights of the roles `edit` and `admin`.

He relabels pods, orphans them, forges owners, annotations and Workloads, has pods ask for more than the first of them
did, reserves for pods that never come, and protects what he borrowed. Where the admission policies are installed
(`Server.policies`), what they forbid is refused. Controllers of the cluster do for him what they do for everybody.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from support.history.actors import ORDINAL, RANK, TOTAL, UNKNOWN
from support.history.policies import ADMITTED_QUOTA
from support.history.server import (
    CLASS,
    GROUP,
    HOSTILE,
    LEADER_SET,
    MARK,
    NAMESPACE,
    POD_GROUPS,
    QUEUE,
    ROLE,
    SET_UID,
    Json,
    Key,
    Refused,
    is_led,
    is_set,
    make_object,
    named_by,
    over,
    owners,
    plural_of,
)

from kube import resources
from ungater.jobs.leaderworkerset import GROUP as GROUP_INDEX
from ungater.jobs.leaderworkerset import NAME

if TYPE_CHECKING:
    from support.history.users import Users

TENANT = "tenant"
COLLECTOR = "garbage collector"
TRIES = 4  # of what there may be nothing for
LONG = 900  # seconds that pods take to stop which are to stay


class Tenant:
    """See the module. ``share``: of what happens in a history, what is his doing."""

    def __init__(self, users: "Users") -> None:
        self._users = users
        self.server = users.server
        self.rng = users.rng
        self.share = self.rng.choice((0.0, 0.0, 0.4, 0.7))
        self.forged: set[str] = set()  # names of Workloads that he wrote himself
        self._numbers = 0
        self._actions: tuple[Callable[[], Any], ...] = (
            *(self._submit,) * 6,
            *(self._bare,) * 2,
            self._elsewhere,
            *(self._relabel,) * 4,
            *(self._annotate,) * 2,
            *(self._disown,) * 3,
            *(self._orphan,) * 3,
            *(self._grow,) * 4,
            *(self._forge_pod,) * 3,
            self._forge_workload,
            *(self._change_workload,) * 2,
            self._delete_workload,
            *(self._limit,) * 2,
            *(self._protect,) * 2,
            self._scale,
            self._suspend,
            *(self._delete,) * 2,
            *(self._delete_pod,) * 2,
        )

    def act(self) -> None:
        """Something, where it can be done now and is not forbidden."""
        before = self.server.commits
        for _ in range(TRIES):
            self._try(self.rng.choice(self._actions))
            if self.server.commits != before:
                return

    def meddle(self, key: Key) -> None:
        """The controller wrote something of his: he acts in the same moment."""
        if self._users.busy and self.share:
            self._users.note("tenant meddles with", *key)
            self.act()

    def rest(self) -> None:
        """He does nothing any more; what he did stays, for the most part."""
        if self.rng.random() < 0.5:
            self.server.most_pods.clear()
        if self.rng.random() < 0.5:
            self.server.budgets.clear()
        if self.server.budgets:  # one that nobody saw would have him chosen, and spared, for ever
            self.server.budgets = {HOSTILE}
            status = {"observedGeneration": 1, "disruptionsAllowed": 0}
            meta = {"name": "all", "namespace": HOSTILE}
            kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
            budget = {**kind, "metadata": meta, "spec": {"selector": {}}, "status": status}
            self.server.create(resources.POD_DISRUPTION_BUDGETS.plural, budget, "tenant")

    def leave(self) -> None:
        """He is gone, and so is what he had."""
        self._users.note("the tenant leaves")
        self.server.budgets.clear()
        self.server.most_pods.clear()
        budgets = resources.POD_DISRUPTION_BUDGETS.plural
        for plural in (budgets, "jobs", "jobsets", "statefulsets", "leaderworkersets", POD_GROUPS.plural, "pods"):
            for found in list(self.server.within(plural, HOSTILE)):
                self.server.delete(found, "admin", grace=0 if plural == "pods" else None)
        for name in sorted(self.forged):
            if (found := self.server.get("workloads", name, HOSTILE)) is not None:
                self.server.delete(found, "admin")

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Refused as refused:
            self._users.note("tenant:", action.__name__, "refused:", str(refused))

    # --- what there is -------------------------------------------------------------------------------------------

    def _any(self, plural: str, wanted: Callable[[Json], Any] = lambda _: True) -> Json | None:
        found = [obj for obj in self.server.within(plural, HOSTILE) if wanted(obj)]
        return self.rng.choice(found) if found else None

    def _any_owner(self, namespace: str = HOSTILE) -> Json | None:
        found = list(owners(self.server, namespace))
        return self.rng.choice(found) if found else None

    def _name(self, prefix: str) -> str:
        """A new name, or that of somebody else's."""
        other = self._any_owner(NAMESPACE)
        if other is not None and self.rng.random() < 0.3:
            return str(self._users.whole(other)["metadata"]["name"])
        self._numbers += 1
        return f"{prefix}{self._numbers}"

    # --- asking for something ----------------------------------------------------------------------------------------

    def _submit(self) -> None:
        other = self._any_owner(NAMESPACE)
        like = other if other is not None and self.rng.random() < 0.2 else None
        self._users.submit(HOSTILE, like)

    def _elsewhere(self) -> None:
        """A Job that another controller is to serve, or one whose pods take long to stop."""
        if self.rng.random() < 0.5:
            self._users.submit(HOSTILE, managedBy="example.com/nobody")
            return
        template = self._users.template(({"kueue.x-k8s.io/require-topology": "kubernetes.io/hostname"},))
        template["spec"]["terminationGracePeriodSeconds"] = LONG
        self._users.submit(HOSTILE, template=template)

    def _bare(self) -> None:
        """A pod by itself, that says what it likes."""
        labels = {QUEUE: self.rng.choice(("a", "b"))} if self.rng.random() < 0.7 else {}
        if self.rng.random() < 0.4:
            labels[GROUP] = self._name("bg")
        annotations = {TOTAL: self.rng.choice(("2", "16", "many"))} if self.rng.random() < 0.6 else {}
        self._make_pod(labels, annotations, [])

    def _make_pod(self, labels: Json, annotations: Json, references: list[Json], spec: Json | None = None) -> None:
        template = self._users.template(({"kueue.x-k8s.io/require-topology": "rack"},))
        meta = {"labels": labels, "annotations": {**template["metadata"]["annotations"], **annotations}}
        pod = make_object(resources.PODS, self._name("bare"), {**template["spec"], **(spec or {})}, **meta)
        pod["metadata"] |= {"namespace": HOSTILE, "ownerReferences": references}
        self.server.create("pods", {**pod, "status": {"phase": "Pending"}}, TENANT)

    # --- whose a pod is ----------------------------------------------------------------------------------------------

    def _relabel(self) -> None:
        pod, rng = self._any("pods"), self.rng
        if pod is None:
            return
        others = [self._any_owner(HOSTILE), self._any_owner(NAMESPACE)]
        uids = [each["metadata"]["uid"] for each in others if each is not None]
        key, values = rng.choice(
            (
                (QUEUE, ("a", "b", "nowhere", None)),
                (QUEUE, ("a", "b", None)),
                (GROUP, ("bg1", "x1", None)),
                (GROUP, tuple(self._name("bg") for _ in range(1))),
                (CLASS, ("high", "low", None)),
                (RANK, ("0", "1", "99", None)),
                (ORDINAL, ("0", "7")),
                (SET_UID, (*uids, None)),
                (ROLE, ("a", "b", None)),
                (NAME, (self._name("l"), None)),
                (GROUP_INDEX, ("0", "1")),
            )
        )
        value = rng.choice(values)
        self._users.note("tenant: labels", pod["metadata"]["name"], key, value)
        self.server.change(pod, lambda new: _set(new["metadata"].setdefault("labels", {}), key, value), TENANT)

    def _annotate(self) -> None:
        pod, workload, rng = self._any("pods"), self._any("workloads"), self.rng
        if pod is None:
            return
        theirs = next(iter(self.server.within("workloads", NAMESPACE)), None)
        names = [each["metadata"]["name"] for each in (workload, theirs) if each is not None]
        quota = f'{{"clusterQueue":"cq-{rng.choice("ab")}","flavors":{{"cpu":"gpu"}}}}'
        key, values = rng.choice(
            (
                (MARK, (*names, None)),
                (ADMITTED_QUOTA, (quota, "{", None)),
                (TOTAL, ("1", "16", None)),
                ("kueue.x-k8s.io/require-topology", ("block", "nothing", None)),
            )
        )
        value = rng.choice(values)
        self._users.note("tenant: annotates", pod["metadata"]["name"], key, value)
        self.server.change(pod, lambda new: _set(new["metadata"].setdefault("annotations", {}), key, value), TENANT)

    def _references(self) -> list[Json]:
        """Of whom a pod says that it is: nobody's, another's, of a kind that nobody knows."""
        rng, other = self.rng, self._any_owner(self.rng.choice((HOSTILE, NAMESPACE)))
        if other is None or rng.random() < 0.3:
            return []
        whole = self._users.whole(other)
        meta = whole["metadata"]
        uid = meta["uid"].partition("/")[0]
        reference = {"apiVersion": whole.get("apiVersion", "v1"), "kind": whole["kind"], "name": meta["name"]}
        if rng.random() < 0.3:
            reference |= {"apiVersion": "made.up/v1", "kind": UNKNOWN}
        return [{**reference, "uid": uid, "controller": True}]

    def _disown(self) -> None:
        pod = self._any("pods")
        if pod is not None:
            references = self._references()
            who = "set controller" if not references and self.rng.random() < 0.5 else TENANT  # it releases pods
            self._users.note("tenant: owner of", pod["metadata"]["name"], "is", references, "by", who)
            self.server.change(pod, lambda new: _owned(new, references), who)

    def _orphan(self) -> None:
        """``kubectl delete --cascade=orphan``; perhaps another is made of its name."""
        owner = self._any_owner()
        if owner is None:
            return
        whole = self._users.whole(owner)
        uid = whole["metadata"]["uid"]
        self._users.note("tenant: orphans what is of", whole["kind"], whole["metadata"]["name"])
        for plural in ("jobs", "pods", "workloads"):
            for found in list(self.server.within(plural, HOSTILE)):
                if uid in named_by(found):
                    kept = [ref for ref in found["metadata"].get("ownerReferences") or () if ref["uid"] != uid]
                    self.server.change(found, lambda new, kept=kept: _owned(new, kept), COLLECTOR)
        stored = self.server.get(plural_of(whole), whole["metadata"]["name"], HOSTILE)
        if stored is not None:
            self.server.delete(stored, TENANT)
        if self.rng.random() < 0.4:
            self._users.submit(HOSTILE, owner)

    # --- asking for more ---------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Another template: pods that are made from now on ask for more, or less, or name another queue."""
        owner = self._any_owner()
        if owner is None or over(owner):
            return
        whole = self._users.whole(owner)
        stored = self.server.get(plural_of(whole), whole["metadata"]["name"], HOSTILE)
        if stored is None:
            return
        cpu, queue = self.rng.choice(("1", "2", "3")), self.rng.choice((None, None, "a", "b"))
        self._users.note("tenant: template of", whole["metadata"]["name"], cpu, queue)

        def mutate(new: Json) -> None:
            for template in _templates(new):
                template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
                if queue is not None and (is_set(owner) or is_led(owner)):
                    template["metadata"].setdefault("labels", {})[QUEUE] = queue

        self.server.change(stored, mutate, TENANT)

    # --- forging -----------------------------------------------------------------------------------------------------

    def _forge_pod(self) -> None:
        """A pod that says it is another's, in one of many ways."""
        rng, other = self.rng, self._any_owner(self.rng.choice((HOSTILE, NAMESPACE)))
        labels: Json = {QUEUE: rng.choice(("a", "b"))} if rng.random() < 0.5 else {}
        annotations: Json = {}
        way = rng.randrange(5)
        if way == 0 and other is not None:
            labels |= {SET_UID: other["metadata"]["uid"], ROLE: "a"}
        elif way == 1 and other is not None:
            labels |= {NAME: self._users.whole(other)["metadata"]["name"], GROUP_INDEX: "0"}
        elif way == 2 and other is not None:
            labels |= {GROUP: other["metadata"]["name"]}
        workload = next(iter(self.server.within("workloads", rng.choice((HOSTILE, NAMESPACE)))), None)
        if way == 3 and workload is not None:
            annotations[MARK] = workload["metadata"]["name"]
        if rng.random() < 0.3:
            annotations[ADMITTED_QUOTA] = '{"clusterQueue":"cq-b","flavors":{"cpu":"gpu"}}'
        self._make_pod(labels, annotations, self._references())

    def _forge_workload(self) -> None:
        """A Workload under the name of one that there is, or of his own."""
        theirs = list(self.server.within("workloads", self.rng.choice((HOSTILE, NAMESPACE))))
        if not theirs:
            return
        other = self.rng.choice(theirs)
        meta, name = other["metadata"], other["metadata"]["name"]
        made = make_object(resources.WORKLOADS, name, {**other["spec"], "priority": 5000, "active": True})
        made["metadata"] |= {"namespace": HOSTILE, "annotations": dict(meta.get("annotations") or {})}
        made["metadata"]["ownerReferences"] = self.rng.choice(
            ([], meta.get("ownerReferences") or [], self._references())
        )
        self.server.create("workloads", made, TENANT)
        self.forged.add(name)

    def _change_workload(self) -> None:
        workload, rng = self._any("workloads"), self.rng
        if workload is None:
            return
        way, references = rng.randrange(4), self._references()

        def mutate(new: Json) -> None:
            if way == 0:
                new["spec"]["active"] = not new["spec"].get("active", True)
            elif way == 1:
                new["spec"]["priority"] = 5000
            elif way == 2:
                new["spec"]["queueName"] = rng.choice(("a", "b"))
            else:
                new["metadata"]["ownerReferences"] = references

        name = workload["metadata"]["name"]
        self._users.note("tenant: changes Workload", name, ["active", "priority", "queue", "owner"][way], references)
        self.server.change(workload, mutate, TENANT)
        if way:
            self.forged.add(name)

    def _delete_workload(self) -> None:
        if (workload := self._any("workloads")) is not None:
            self.server.delete(workload, TENANT)

    # --- what holds things up ----------------------------------------------------------------------------------------

    def _limit(self) -> None:
        """A ResourceQuota for pods."""
        most = self.rng.choice((0, 0, 1, 3, None))
        self._users.note("tenant: quota of pods", most)
        self.server.most_pods.pop(HOSTILE, None)
        if most is not None:
            self.server.most_pods[HOSTILE] = most
        self.server.wake_up("pods")

    def _protect(self) -> None:
        """PodDisruptionBudgets with maxUnavailable 0."""
        owner = self._any_owner()
        uid = HOSTILE if owner is None or self.rng.random() < 0.5 else owner["metadata"]["uid"]
        self._users.note("tenant: budget of", uid)
        self.server.budgets ^= {uid}

    # --- what everybody does -----------------------------------------------------------------------------------------

    def _delete(self) -> None:
        if (owner := self._any_owner()) is not None:
            self._users.delete(owner)

    def _scale(self) -> None:
        if (owner := self._any_owner()) is not None:
            self._users.scale(owner)

    def _suspend(self) -> None:
        owner = self._any_owner()
        if owner is not None and not is_set(owner) and not over(owner):
            suspend = not owner["spec"].get("suspend")
            self.server.change(owner, lambda new: new["spec"].update(suspend=suspend), TENANT)

    def _delete_pod(self) -> None:
        if (pod := self._any("pods")) is not None:
            self.server.delete(pod, TENANT, grace=0 if self.rng.random() < 0.2 else None)


def _set(into: Json, key: str, value: str | None) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _owned(new: Json, references: list[Json]) -> None:
    """Have an object be of these owners; a LeaderWorkerSet's pod also of nobody whom the simulation knows."""
    new["metadata"]["ownerReferences"] = references
    (new["metadata"].get("annotations") or {}).pop(LEADER_SET, None)


def _templates(owner: Json) -> Iterator[Json]:
    spec = owner["spec"]
    if "leaderWorkerTemplate" in spec:
        found = spec["leaderWorkerTemplate"]
        yield from (found[name] for name in ("leaderTemplate", "workerTemplate") if name in found)
    elif "replicatedJobs" in spec:
        yield from (each["template"]["spec"]["template"] for each in spec["replicatedJobs"])
    else:
        yield spec["template"]
