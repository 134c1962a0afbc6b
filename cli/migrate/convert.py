"""All objects of Kueue together: each kind by its table, then what refers to what, then the order to apply them in."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from cli.cluster.dump import FoundObject
from cli.migrate import convert_checks, convert_flavors, convert_queues
from cli.migrate.conversion import (
    METADATA,
    Converted,
    Finish,
    KnownObjects,
    Scene,
    convert_nothing,
    convert_object,
    make_row,
)
from cli.migrate.leaves import FieldTable, Leaf
from cli.migrate.older_versions import raise_version
from cli.migrate.rows import FieldVerdict, Json, Row, left, refused
from cli.output import some
from crds.constants import Keys
from ungater.model.kueue_objects import GROUP

_KINDS: Final[Mapping[str, tuple[FieldTable[Scene], Finish]]] = {  # in the order in which they are applied
    "WorkloadPriorityClass": (convert_queues.PRIORITY_CLASSES, convert_queues.finish_class),
    convert_flavors.FLAVOR: (convert_flavors.FLAVORS, convert_flavors.finish_flavor),
    convert_queues.COHORT: (convert_queues.COHORTS, convert_queues.finish_cohort),
    convert_queues.CLUSTER_QUEUE: (convert_queues.CLUSTER_QUEUES, convert_queues.finish_queue),
    "LocalQueue": (convert_queues.LOCAL_QUEUES, convert_queues.finish_nothing),
}
_JUDGED: Final[Mapping[str, tuple[FieldTable[Scene], Callable[[Scene], FieldVerdict]]]] = {
    convert_flavors.TOPOLOGY: (convert_flavors.TOPOLOGIES, convert_flavors.judge_topology),
    convert_checks.CHECK: (convert_checks.CHECKS, convert_checks.judge_check),
    "ProvisioningRequestConfig": (convert_checks.PROVISIONING, convert_checks.judge_provisioning),
    "MultiKueueConfig": (convert_checks.CLUSTERS, convert_checks.judge_clusters),
    "MultiKueueCluster": (convert_checks.CLUSTERS, convert_checks.judge_clusters),
}
OF_A_JOB: Final = left("Kueue made it for a job; the job is what is queued again")
_UNKNOWN: Final = refused(
    "topogate does not know the kind", "see Kueue's documentation for what it does, and whether you need it"
)
_FOLLOWS_NODES: Final = refused(
    "a quota is the number that its queue or cohort names, and does not follow the nodes that there are",
    "write the amounts of status.effectiveQuota as nominalQuota: those of the spec may be no more than proportions",
)
# Kinds of which nothing is made, with why; all others are not known.
_TOLD: Final = {
    "Workload": OF_A_JOB,
    **dict.fromkeys(("CapacityProvider", "DynamicQuotaOrchestrator"), _FOLLOWS_NODES),  # Kueue 0.20, alpha
}
_KEYS: Final = Keys()
_BOOST: Final = refused(
    "the Workload that Topogate makes of the job begins without a boost",
    "annotate that one as this one, once it is made",
)
_PARENTS: Final = {convert_queues.CLUSTER_QUEUE: "cohortName", convert_queues.COHORT: "parentName"}


def is_of_kueue(found: FoundObject) -> bool:
    """Whether it is one of Kueue's own kinds, its Configuration apart."""
    return found.api_group == GROUP


def convert_all(found: Sequence[FoundObject], without_checks: Iterable[str] = ()) -> tuple[list[Json], list[Row]]:
    """Objects of ours in the order in which they are applied, and the rows of all that was found."""
    raised = [(one, raise_version(one.body)[0]) for one in found]
    # Kinds of no namespace alone are looked up by name.
    bodies = {(one.kind, one.name): body for one, body in raised}
    known = KnownObjects(bodies, frozenset(without_checks))
    # Only when all are converted it is known which cohorts are refused.
    every = refuse_orphans([convert_one(one, known) for one in found])
    kinds = [*_KINDS]
    made = sorted(
        (one for one in every if one.made is not None),
        key=lambda one: (kinds.index(one.source.kind), depth_of(one.source.name, known), one.source.name),
    )
    return [one.made for one in made if one.made is not None], [row for one in every for row in one.rows]


def convert_one(found: FoundObject, known: KnownObjects) -> Converted:
    """One object, by the tables of its kind."""
    if found.kind in _KINDS:
        return convert_object(found, _KINDS[found.kind][0], known, _KINDS[found.kind][1])
    if found.kind in _JUDGED:
        return convert_nothing(found, _JUDGED[found.kind][0], known, _JUDGED[found.kind][1])
    verdict = _TOLD.get(found.kind, _UNKNOWN)

    def judge(leaf: Leaf, _scene: Scene) -> FieldVerdict:
        # Topogate's Workloads have it too. It makes them of the jobs, and they begin without one.
        return _BOOST if found.kind == "Workload" and leaf.path[-1:] == (_KEYS.priority_boost,) else verdict

    return convert_nothing(found, FieldTable[Scene](METADATA, {"**": judge}), known, lambda _: verdict)


def refuse_orphans(every: list[Converted]) -> list[Converted]:
    """Refuse queues below a cohort that is refused: without its quota and limits, more or less would run.

    Other objects that refer to something refused wait in words: a ClusterQueue without its flavor is inactive.
    """
    below: defaultdict[str, list[int]] = defaultdict(list)  # what names a cohort, by where it stands
    for at, one in enumerate(every):
        if parent := _spec_of(one.made).get(_PARENTS.get(one.source.kind, "")):
            below[str(parent)].append(at)
    kept = list(every)
    lost = [one.source.name for one in every if one.source.kind == convert_queues.COHORT and one.made is None]
    while lost:
        cohort = lost.pop()
        for at in below.pop(cohort, ()):
            one = every[at]
            row = make_row(
                one.source, "", refused(f"its Cohort {cohort} is refused", f"see the row of Cohort {cohort}")
            )
            kept[at] = Converted(one.source, None, [row, *one.rows[1:]])
            if one.source.kind == convert_queues.COHORT:
                lost.append(one.source.name)
    flavors, queues = (
        {one.source.name for one in kept if one.made is not None and one.source.kind == kind}
        for kind in (convert_flavors.FLAVOR, convert_queues.CLUSTER_QUEUE)
    )
    read = {(one.source.kind, one.source.name) for one in every}
    return [tell_missing(one, flavors, queues, read) for one in kept]


def tell_missing(one: Converted, flavors: set[str], queues: set[str], read: set[tuple[str, str]]) -> Converted:
    """Say in the row of a queue what it waits for."""
    spec, missing = _spec_of(one.made), list[tuple[str, str]]()
    if one.source.kind == convert_queues.CLUSTER_QUEUE and one.made is not None:
        named = [flavor["name"] for group in spec.get("resourceGroups") or () for flavor in group["flavors"]]
        missing = [(convert_flavors.FLAVOR, name) for name in dict.fromkeys(named) if name not in flavors]
    elif one.source.kind == "LocalQueue" and one.made is not None and spec["clusterQueue"] not in queues:
        missing = [(convert_queues.CLUSTER_QUEUE, spec["clusterQueue"])]
    if not missing:
        return one
    titles = some([f"{kind} {name}" for kind, name in missing])
    fate = "is refused" if missing[0] in read else "is not among what was read"
    why = f"{titles} {fate}: the queue is inactive until it exists"
    return replace(one, rows=[replace(one.rows[0], why=why), *one.rows[1:]])


def _spec_of(made: Json | None) -> Json:
    spec: Any = (made or {}).get("spec")
    return spec if isinstance(spec, dict) else {}


def depth_of(name: str, known: KnownObjects) -> int:
    """How many cohorts are above one of this name; a circle counts once round."""
    seen = {name}
    while (parent := convert_queues.parent_of(known, name)) is not None and parent not in seen:
        seen.add(parent)
        name = parent
    return len(seen)
