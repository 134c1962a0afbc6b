"""What people are told of the tree of cohorts."""

from collections.abc import Sequence
from typing import Final

# Names of 253 characters, and as many as there are: a condition takes 32,768 characters.
NAMED: Final = 8


def circle_in_words(cycle: Sequence[str]) -> str:
    """Why nothing is admitted below cohorts that are each other's parents; ``cycle``: from each to its parent."""
    if len(cycle) == 1:
        text = f"cohort {cycle[0]} is its own parent: nothing of the queues below it is admitted until it has another"
        return f"{text} parentName"
    shown, more = list(cycle[:NAMED]), len(cycle) - NAMED
    names = f"{', '.join(shown)} and {more} more" if more > 0 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    way = " → ".join([*shown, *(["…"] if more > 0 else []), cycle[0]])
    text = f"cohorts {names} are each other's parents ({way}): nothing of the queues below them is admitted"
    return f"{text} until one of them has another parentName"


def missing_parent(parent: str) -> str:
    """What a cohort is told whose parent is not there."""
    return f"there is no Cohort {parent}, its parent: it counts as one without quota or limits"
