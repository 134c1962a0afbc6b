"""The form in which Kueue stores a topology assignment (v1beta2 and v1beta1), read and written. Pure, over plain JSON.

v1beta2 has slices, each with one list of values a level: a value that all share (``universal``), or what is left of
each between a common ``prefix`` and ``suffix``. v1beta1 has one object a domain. Kueue leaves out the levels above the
host name: it alone tells the node (0.19.2, apis/kueue/v1beta2/workload_types.go, ``TopologyAssignment``).
"""

from collections.abc import Iterator, Mapping, Sequence
from os.path import commonprefix
from typing import Any, Final

from crds.assignment import Domain

MOST_DOMAINS: Final = 1_000_000  # a status of 1.5 MB can name a shared value any number of times
_MOST_IN_SLICE: Final = 100_000  # MaxItems of roots


def decode(assignment: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Domain]]:
    """Levels, widest first, and domains in rank order: (a value a level, pods).

    Raises KeyError, TypeError, ValueError, IndexError or AttributeError where it is none of the two forms.
    """
    levels = tuple(assignment["levels"])
    if "slices" not in assignment:
        return levels, [(tuple(one["values"]), one["count"]) for one in assignment.get("domains", ())]
    found: list[Domain] = []
    for piece in assignment["slices"]:
        number = piece["domainCount"]
        if len(found) + number > MOST_DOMAINS:
            raise ValueError(f"a topology assignment of more than {MOST_DOMAINS} domains")
        columns = [_values(one, number) for one in piece["valuesPerLevel"]]
        if len(columns) != len(levels):
            raise ValueError(f"a slice of a topology assignment with {len(columns)} of {len(levels)} levels")
        counts = piece["podCounts"]
        pods = [counts["universal"]] * number if "universal" in counts else counts["individual"]
        found += zip(zip(*columns, strict=True), pods, strict=True)
    return levels, found


def encode(levels: Sequence[str], domains: Sequence[Domain]) -> dict[str, Any]:
    """The v1beta2 form of an assignment; ``domains`` in rank order, each with a value a level and its pods."""
    starts = range(0, len(domains), _MOST_IN_SLICE)
    pieces = [_slice(len(levels), domains[start : start + _MOST_IN_SLICE]) for start in starts]
    return {"levels": list(levels), "slices": pieces}


def _values(stored: Mapping[str, Any], number: int) -> Iterator[str]:
    """The values of one level in a slice."""
    if "universal" in stored:
        return iter([stored["universal"]] * number)
    parts = stored["individual"]
    prefix, suffix = parts.get("prefix", ""), parts.get("suffix", "")
    return iter([prefix + root + suffix for root in parts["roots"]])


def _slice(levels: int, domains: Sequence[Domain]) -> dict[str, Any]:
    counts = [count for _, count in domains]
    alike = len(set(counts)) == 1
    return {
        "domainCount": len(domains),
        "valuesPerLevel": [_level([values[level] for values, _ in domains]) for level in range(levels)],
        "podCounts": {"universal": counts[0]} if alike else {"individual": counts},
    }


def _level(values: Sequence[str]) -> dict[str, Any]:
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = commonprefix(values)  # noqa: RUF071 - names are no paths
    # Only what follows the prefix: of "ababa" and "aba" both ends would take the same letters.
    suffix = commonprefix([value[len(prefix) :][::-1] for value in values])[::-1]  # noqa: RUF071
    ends = {key: text for key, text in (("prefix", prefix), ("suffix", suffix)) if text}
    roots = [value[len(prefix) : len(value) - len(suffix)] for value in values]
    return {"individual": {**ends, "roots": roots}}
