"""ClusterQueue, LocalQueue, Cohort and WorkloadPriorityClass: fields of the same names, and the few that differ."""

from collections.abc import Iterator, Mapping
from typing import Final

from cli.migrate.conversion import METADATA, KnownObjects, Scene
from cli.migrate.convert_checks import judge_check_name, judge_check_rest
from cli.migrate.leaves import FieldTable, Leaf, Rule
from cli.migrate.rows import TAKEN, FieldVerdict, Json, changed, refused
from cli.output import some

CLUSTER_QUEUE: Final = "ClusterQueue"
COHORT: Final = "Cohort"
DEFAULT_CLASS: Final = "default"


def judge_limit(leaf: Leaf, scene: Scene) -> FieldVerdict:
    """A limit of borrowing or lending, which means nothing without others."""
    parent = "cohortName" if scene.body.get("kind") == CLUSTER_QUEUE else "parentName"
    if scene.body["spec"].get(parent):
        return TAKEN
    whom = "lend to" if leaf.path[-1] == "lendingLimit" else "borrow from"
    return changed(f"left out: without {parent} there is nobody to {whom}")


def judge_parent(leaf: Leaf, _scene: Scene) -> FieldVerdict:
    """The cohort above."""
    # Kueue's client writes no empty name; people do, and mean none.
    return TAKEN if leaf.value != "" else changed("left out: an empty name is none")


def judge_scope(leaf: Leaf, _scene: Scene) -> FieldVerdict:
    """Fair sharing among the LocalQueues of a queue."""
    if leaf.value == "NoAdmissionFairSharing":
        return changed("left out: it is the same as no admissionScope")
    return TAKEN


_QUOTAS: Final[Mapping[str, Rule[Scene]]] = {
    "spec.resourceGroups[].coveredResources[]": TAKEN,
    "spec.resourceGroups[].flavors[].name": TAKEN,
    "spec.resourceGroups[].flavors[].resources[].name": TAKEN,
    "spec.resourceGroups[].flavors[].resources[].nominalQuota": TAKEN,
    "spec.resourceGroups[].flavors[].resources[].borrowingLimit": judge_limit,
    "spec.resourceGroups[].flavors[].resources[].lendingLimit": judge_limit,
    "spec.fairSharing.weight": TAKEN,
}
_NEVER_BETTER: Final = refused(
    "a job stays in the flavor in which it starts: Topogate moves jobs within a flavor only (movesPerHour)",
    "order the flavors so that the first that fits is the one to stay in",
)
CLUSTER_QUEUES: Final = FieldTable[Scene](
    METADATA,
    _QUOTAS,
    {
        "spec.cohortName": judge_parent,
        **{f"spec.{name}": TAKEN for name in ("queueingStrategy", "stopPolicy")},
        "spec.namespaceSelector.matchLabels.*": TAKEN,
        "spec.namespaceSelector.matchExpressions[].key": TAKEN,
        "spec.namespaceSelector.matchExpressions[].operator": TAKEN,
        "spec.namespaceSelector.matchExpressions[].values[]": TAKEN,
        **{f"spec.flavorFungibility.{name}": TAKEN for name in ("whenCanBorrow", "whenCanPreempt", "preference")},
        "spec.preemption.reclaimWithinCohort": TAKEN,
        "spec.preemption.withinClusterQueue": TAKEN,
        "spec.preemption.borrowWithinCohort.policy": TAKEN,
        "spec.preemption.borrowWithinCohort.maxPriorityThreshold": TAKEN,
        "spec.admissionChecksStrategy.admissionChecks[].name": judge_check_name,
        "spec.admissionChecksStrategy.admissionChecks[].onFlavors[]": judge_check_rest,
        "spec.admissionScope.admissionMode": judge_scope,
        "spec.concurrentAdmissionPolicy.migration.mode": _NEVER_BETTER,
        "spec.concurrentAdmissionPolicy.migration.constraints.lastAcceptableFlavorName": _NEVER_BETTER,
    },
)
LOCAL_QUEUES: Final = FieldTable[Scene](
    METADATA, {"spec.clusterQueue": TAKEN, "spec.stopPolicy": TAKEN, "spec.fairSharing.weight": TAKEN}
)
COHORTS: Final = FieldTable[Scene](METADATA, _QUOTAS, {"spec.parentName": judge_parent})
PRIORITY_CLASSES: Final = FieldTable[Scene](METADATA, {"value": TAKEN, "description": TAKEN})


def finish_queue(made: Json, scene: Scene) -> Iterator[tuple[str, FieldVerdict]]:
    """Say which cohort is one without quota of its own."""
    spec = made.get("spec")
    name = spec.get("cohortName") if isinstance(spec, dict) else None
    if isinstance(name, str) and scene.known.find_body(COHORT, name) is None:
        yield (
            "spec.cohortName",
            FieldVerdict("taken", f"there is no Cohort {name}: it has no quota and no limits of its own"),
        )


def finish_cohort(made: Json, scene: Scene) -> Iterator[tuple[str, FieldVerdict]]:
    """Say where parents lead round in a circle."""
    way: dict[str, None] = {made["metadata"]["name"]: None}
    name = parent = made["metadata"]["name"]
    while (parent := parent_of(scene.known, name)) is not None and parent not in way:
        way[parent] = None
        name = parent
    if parent is None:
        return
    if len(way) == 1:
        why = "a cohort cannot be its own parent; in Kueue its queues are inactive"
        yield "spec.parentName", refused(why, "leave parentName out: the cohort is the root of a tree", grave=True)
        return
    names = [*way]
    circle = some([*names[names.index(parent) :], parent], 8, " → ")
    yield "spec.parentName", FieldVerdict("taken", f"a circle, {circle}: its queues are inactive, as in Kueue")


def finish_class(made: Json, _scene: Scene) -> Iterator[tuple[str, FieldVerdict]]:
    """Say what the name `default` does."""
    if made["metadata"]["name"] == DEFAULT_CLASS:
        why = (
            "jobs that name no class are of this one; in Kueue they are from 0.20 on (0.19: only with the gate "
            "WorkloadPriorityClassDefaulting)"
        )
        yield "metadata.name", changed(why)


def finish_nothing(_made: Json, _scene: Scene) -> Iterator[tuple[str, FieldVerdict]]:
    """Nothing more to say."""
    return iter(())


def parent_of(known: KnownObjects, name: str) -> str | None:
    """The cohort above a cohort."""
    body = known.find_body(COHORT, name)
    spec = body.get("spec") if body is not None else None
    parent = spec.get("parentName") if isinstance(spec, dict) else None
    return parent if isinstance(parent, str) and parent else None
