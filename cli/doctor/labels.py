"""What is wrong with the labels of a flavor's levels. Pure: nodes and pods in, findings out.

Labels of levels are the output of some tool, which writes them again at its next look: a remedy is nothing that it then
takes back (`relabel`).
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from cli.doctor.findings import Finding, warning
from cli.topology.known import WRITERS
from cli.topology.odd import likely_value, lopsided_levels, superseded
from cli.topology.survey import Labelled, coverage, listed, unknown_in_words
from crds.constants import HOSTNAME_LABEL
from crds.topology_labels import SUPERSEDED, lopsided_in_words, superseded_in_words
from kube.objects import Pod

GUIDE = "docs/install.md, Labels are some tool's output"
MOST = 4


def relabel(nodes: Sequence[str], key: str, value: str = "...", *, overwrite: bool = False) -> str:
    """What gives nodes the right label of a level."""
    writer = WRITERS.get(key)
    # The tool writes its label again at its next look: a command of ours would help for a minute.
    if writer is not None:
        what = ", ".join(nodes[:MOST])
        return f"mend what {writer} says of {what}: it writes {key}, and takes back what kubectl label sets ({GUIDE})"
    return f"kubectl label node {'--overwrite ' if overwrite else ''}{' '.join(nodes[:MOST])} {key}={value}"


def without_a_domain(name: str, nodes: Sequence[Labelled], levels: Sequence[str], install: str) -> Iterator[Finding]:
    """Nodes of a flavor that name no domain of a level: a few, or all."""
    for level in levels:
        found = coverage(nodes, level)
        # Every node lacks it: that is one cause, and naming all of them would hide it.
        if not found.carried and level != HOSTNAME_LABEL:
            said = f" ({', '.join(found.unknown)} says that it is not known)" if found.unknown else ""
            why = (
                f"none of its {found.nodes} nodes has the label {found.key} of a level{said}: a job that requires the "
                "level waits, all else is placed without it"
            )
            flavor = name.removeprefix("flavor ")
            others = ",".join(level for level in levels if level != found.key) or HOSTNAME_LABEL
            yield warning(
                name,
                why,
                f"where the label does not come back: kubectl delete resourceflavors.topogate.dev {flavor}; "
                f"{install} --topology {others} --flavor {flavor}-2",
            )
            continue
        told: set[str] = set()
        for value, names in found.unknown.items():
            told.update(names)
            yield warning(name, unknown_in_words(found, value, names), _filled_in(nodes, names, level, overwrite=True))
        if lacking := [node for node in found.missing if node not in told]:
            lacks, takes = ("lacks", "takes") if len(lacking) == 1 else ("lack", "take")
            share = f"{len(lacking)} of {len(nodes)}"
            text = f"{listed(lacking)} ({share}) {lacks} the label {level} of a level, and {takes} no pods"
            yield warning(name, text, _filled_in(nodes, lacking, level))


def _filled_in(nodes: Sequence[Labelled], lacking: Sequence[str], key: str, *, overwrite: bool = False) -> str:
    """What gives nodes their label of a level, with the values that their neighbours by name have."""
    if key in WRITERS:
        return relabel(lacking, key)
    by_value: dict[str, list[str]] = {}
    for name in lacking[:MOST]:
        # A value is proposed only where neighbours agree; a guess would put hosts into the wrong rack.
        by_value.setdefault(likely_value(nodes, name, key) or "...", []).append(name)
    return "; ".join(relabel(names, key, value, overwrite=overwrite) for value, names in by_value.items())


def of_tools(name: str, nodes: Sequence[Labelled], levels: Sequence[str], install: str) -> Iterator[Finding]:
    """Labels that a tool gave up, and levels of which it makes something else at each look."""
    for key in superseded(nodes, levels):
        flavor = name.removeprefix("flavor ")
        others = ",".join(SUPERSEDED.get(level, level) for level in levels)
        mend = (
            f"kubectl delete resourceflavors.topogate.dev {flavor}; {install} --topology {others} --flavor {flavor}-2"
        )
        yield warning(name, superseded_in_words(key), mend)
    for wide, narrow, most, least in lopsided_levels(nodes, levels):
        text = lopsided_in_words(wide, narrow, most, least)
        look = f"kubectl get nodes -L {','.join(levels)}"
        yield warning(name, text, f"{look}; where no fabric is built so: iblinkinfo, and mend the cable ({GUIDE})")


def changed(
    name: str, nodes: Iterable[Labelled], levels: Sequence[str], placed: Iterable[tuple[str, Pod]]
) -> Iterator[Finding]:
    """Pods on nodes that had other labels of the levels when they were placed. ``placed``: with their owners."""
    by_name = {node.name: node for node in nodes}
    found: list[tuple[str, str, str, str]] = []  # owner, node, level, value when it was placed
    for owner, pod in placed:
        node, selector = by_name.get(pod.spec.node_name), pod.spec.node_selector or {}
        # The pod's selector has the labels as they were when it was placed.
        others = [level for level in levels if node and level in selector and node.value(level) != selector[level]]
        # The widest level alone: a node that moved to another block has another rack as well.
        found += [(owner, pod.spec.node_name, level, selector[level]) for level in others[:1]]
    if not found:
        return
    owners, moved = ([*dict.fromkeys(column)] for column in list(zip(*found, strict=True))[:2])
    owner, first, level, value = found[0]
    whose = ", ".join(owners[:MOST]) + (" ..." if len(owners) > MOST else "")
    run = f"{len(found)} pods of {whose} run" if len(found) > 1 else f"1 pod of {whose} runs"
    change = f"{level} of {first} was {value}, is {by_name[first].labels.get(level) or 'gone'}"
    text = (
        f"{run} on nodes whose labels changed since: {listed(moved)} ({change}); they stay, maybe not together any more"
    )
    kind, _, full_name = owner.rpartition(" ")
    namespace, _, name_of_owner = full_name.partition("/")
    whom = shlex.quote(f"{kind.lower()}/{name_of_owner}")  # the API server takes any text as the kind of an owner
    mend = f"where the new labels are right: topogate requeue -n {namespace} {whom} places it again"
    yield warning(name, text, f"{mend}; where they are wrong: {relabel([first], level, value, overwrite=True)}")
