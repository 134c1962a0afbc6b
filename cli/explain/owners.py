"""The owner that ``topogate explain`` is asked about: ``NAME``, or ``KIND/NAME`` as kubectl takes it."""

from cli.output import Failure
from ungater.jobs import Owner
from ungater.memory import Memory
from ungater.record import Record

_SHORT = {"js": "jobset", "lws": "leaderworkerset", "sts": "statefulset", "deploy": "deployment", "rs": "replicaset"}
_SHORT |= {"po": "pod", "group": "podgroup"}


def named(text: str) -> tuple[str, str]:
    """(kind, name): the kind in lower case and in the singular, "" where only a name was given."""
    kind, _, name = text.rpartition("/")
    kind = kind.lower().partition(".")[0]
    kind = _SHORT.get(kind, kind)
    return (kind.removesuffix("s")), name


def find(memory: Memory, namespace: str, kind: str, name: str) -> Record:
    """The record of an owner. Raises Failure where there is none, or several."""
    alike = [
        record
        for record in memory.records.values()
        if record.owner.namespace == namespace and _is(record.owner, kind, name)
    ]
    exact = [record for record in alike if full_name(record.owner) == name]
    if len(found := exact or alike) == 1:
        return found[0]
    if not found:
        what = kind or "Job or other owner of pods"
        raise Failure(
            f"no {what} {name} in namespace {namespace} has pods that Topogate places; `kubectl get workloads -n "
            f"{namespace}` lists what it knows"
        )
    names = ", ".join(sorted(f"{one.owner.kind.lower()}/{full_name(one.owner)}" for one in found))
    raise Failure(f"{name}: which of them: {names}?")


def seen(record: Record | None) -> Owner:
    """The owner of a record that is there."""
    if record is None:
        raise AssertionError("no record")
    return record.owner


def _is(owner: Owner, kind: str, name: str) -> bool:
    if kind == "deployment":
        return owner.kind == "ReplicaSet" and owner.name.rpartition("-")[0] == name
    return (not kind or owner.kind.lower() == kind) and name in {owner.name, full_name(owner)}


def full_name(owner: Owner) -> str:
    """The name, with what tells several workloads of one owner apart: the group's index, or the kind of pods."""
    return f"{owner.name}-{owner.part}" if owner.part else owner.name
