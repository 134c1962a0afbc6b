"""Trees of cohorts that lend nothing, or not what they seem to, and what mends that. Pure: queues in, findings out."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from cli.doctor.findings import Finding, error, warning
from cli.output import some
from crds.spelling import meant
from queueing.messages import in_circle, missing_parent
from queueing.queues.cohort_tree import CohortTree

if TYPE_CHECKING:
    from queueing.model import FlavorResource


def findings(tree: CohortTree, flavors: Collection[str]) -> Iterator[Finding]:
    """``flavors``: all that there are."""
    yield from _circles(tree)
    objects = {name for name, node in tree.cohorts.items() if node.exists}
    yield from _missing(tree, objects)
    yield from _unusable(tree, flavors)


def _circles(tree: CohortTree) -> Iterator[Finding]:
    # A circle is one finding, however many cohorts and queues are in it and below it.
    for cycle in sorted({node.cycle for node in tree.cohorts.values() if node.cycle}):
        mend = f"kubectl edit cohorts.topogate.dev {cycle[0]}: name another spec.parentName, or none and no limits"
        yield error(f"Cohort {cycle[0]}", in_circle(cycle), mend)


def _missing(tree: CohortTree, objects: Collection[str]) -> Iterator[Finding]:
    for name, parent in sorted(tree.missing_parents()):
        hint = meant(parent, (one for one in objects if one != name))
        mend = f"create that Cohort, or kubectl edit cohorts.topogate.dev {name}: name another spec.parentName"
        yield warning(f"Cohort {name}", missing_parent(parent), f"{mend}; {hint}" if hint else mend)
    if not objects:
        return
    named: dict[str, list[str]] = defaultdict(list)
    for name, node in sorted(tree.queues.items()):
        if node.exists and node.declared and node.declared not in objects:
            named[node.declared].append(name)
    for cohort, queues in sorted(named.items()):
        # Cohorts without an object are no fault: they are one level, with no quota of their own. A name that is nearly
        # that of an object may be a slip, which would keep its queues out of the tree.
        if hint := meant(cohort, objects):
            text = f"names cohort {cohort}, for which there is no Cohort: it lends and borrows outside of every tree"
            about = f"ClusterQueue {some(queues)}"
            yield warning(
                about, text, f"kubectl edit clusterqueues.topogate.dev {queues[0]}: check spec.cohortName; {hint}"
            )


def _unusable(tree: CohortTree, flavors: Collection[str]) -> Iterator[Finding]:
    below: dict[str, set[FlavorResource]] = defaultdict(set)
    for node in tree.queues.values():
        for cohort in node.path:
            below[cohort.name].update(node.quota)
    for name, cohort in sorted(tree.cohorts.items()):
        idle = [key for key in cohort.quota if key not in below[name]]
        if not idle or cohort.root.cycle:
            continue
        shown = some([f"{resource} of flavor {flavor}" for flavor, resource in idle])
        unknown = next((flavor for flavor, _ in idle if flavor not in flavors), None)
        hint = meant(unknown, flavors) if unknown is not None else ""
        edit = f"kubectl edit cohorts.topogate.dev {name}: correct it"
        mend = f"{edit}; or have a ClusterQueue below list the same, if with nominal 0"
        text = f"has quota or limits for {shown}, which no ClusterQueue below it lists: nobody can use them"
        yield warning(f"Cohort {name}", text, f"{mend}; {hint}" if hint else mend)
