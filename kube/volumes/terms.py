"""Terms that nodes are compared with: what volumes and classes say of where they are, united, joined and bounded."""

from collections.abc import Sequence
from typing import Final

from engine.model import LabelRequirement, NodeTerm

MOST_REQUIREMENTS: Final = 256  # of the node affinity of one volume, or of all that one claim may be bound to
MOST_VALUES: Final = 16_384  # of one requirement: volumes of one host each are merged

Terms = tuple[NodeTerm, ...]  # ORed


def both(one: Terms | None, other: Terms | None) -> Terms | None:
    """Where both hold; None: on all nodes."""
    if one is None or other is None:
        return other if one is None else one
    # The terms are ORed: the cut may lose nodes that would do, and lets none in that would not.
    return tuple([NodeTerm(labels=(*a.labels, *b.labels)) for a in one for b in other][:MOST_REQUIREMENTS])


def size_of(terms: Terms) -> int:
    """How much it takes to compare a node with the terms."""
    needs = [need for term in terms for need in (*term.labels, *term.fields)]
    return len(terms) + len(needs) + sum(len(need.values) for need in needs) // (MOST_VALUES // MOST_REQUIREMENTS)


def merged(terms: Sequence[NodeTerm]) -> Terms:
    """The same, each once; those that name one value of one label, like volumes of one host each, are one term."""
    values: dict[str, dict[str, None]] = {}
    others: dict[NodeTerm, None] = {}
    for term in terms:
        match term.labels, term.fields:
            case (LabelRequirement(key=key, operator="In", values=several),), ():
                values.setdefault(key, {}).update(dict.fromkeys(several))
            case _:
                others[term] = None
    single = (
        NodeTerm(labels=(LabelRequirement(key=key, operator="In", values=tuple(sorted(several))[:MOST_VALUES]),))
        for key, several in sorted(values.items())
    )
    return (*single, *others)
