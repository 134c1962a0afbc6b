"""The two stored forms of a topology assignment, and how to choose. Pure, over plain JSON objects.

An assignment is a list of (values, count): one value for each level, in rank order. ``slices`` names every label of
every domain and is for people; ``groups`` writes what neighbours share once. 20,000 hosts take some 4 MB as slices and
under 0.3 MB as groups, and an object may have 1.5 MB.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from os.path import commonprefix
from typing import Any

Domain = tuple[tuple[str, ...], int]

# Some 50 kB as slices, at 200 bytes a domain: people still read it, and a status still has room for the rest.
SLICES_LIMIT = 256


def encode(levels: Sequence[str], domains: Sequence[Domain], *, limit: int = SLICES_LIMIT) -> dict[str, Any]:
    """The stored form: ``slices`` up to ``limit`` domains, above it ``groups``. Order is kept in both."""
    if len(domains) > limit:
        return {"levels": list(levels), "groups": [_group(parent, run) for parent, run in _runs(domains)]}
    slices = [{"nodeLabels": dict(zip(levels, values, strict=True)), "count": count} for values, count in domains]
    return {"levels": list(levels), "slices": slices}


def decode(assignment: dict[str, Any], levels: Sequence[str] = ()) -> tuple[tuple[str, ...], list[Domain]]:
    """Levels and domains of either stored form. ``levels`` serves where the object carries none.

    Raises KeyError where a slice lacks the label of a level, ValueError where nothing tells the order of the levels.
    """
    keys = tuple(assignment.get("levels") or levels)
    if "groups" in assignment:
        return keys, [domain for group in assignment["groups"] for domain in _members(group)]
    slices = assignment.get("slices", [])
    if not keys and slices:
        keys = tuple(slices[0]["nodeLabels"])
        # The schema lets levels be absent, and the API server sorts the keys of maps: the slices tell no order.
        if len(keys) > 1:
            raise ValueError(f"a topology assignment without levels, whose slices have several labels: {sorted(keys)}")
    return keys, [(tuple(entry["nodeLabels"][key] for key in keys), entry["count"]) for entry in slices]


def _runs(domains: Sequence[Domain]) -> Iterator[tuple[tuple[str, ...], list[Domain]]]:
    """Neighbours under one parent; a parent may come back later, for the order is the ranks'."""
    for parent, run in groupby(domains, key=lambda domain: domain[0][:-1]):
        yield parent, list(run)


def _group(parent: tuple[str, ...], run: list[Domain]) -> dict[str, Any]:
    names = [values[-1] for values, _ in run]
    prefix = _common_prefix(names)
    # Only what follows the prefix: of names like n1 and n11 both ends would take the same letter.
    suffix = _common_prefix([name[: len(prefix) - 1 if prefix else None : -1] for name in names])[::-1]
    group: dict[str, Any] = {"values": list(parent)}
    group |= {key: text for key, text in (("prefix", prefix), ("suffix", suffix)) if text}
    group["names"] = [name[len(prefix) : len(name) - len(suffix)] for name in names]
    counts = [count for _, count in run]
    return group | ({"count": counts[0]} if len(set(counts)) == 1 else {"counts": counts})


def _members(group: dict[str, Any]) -> Iterator[Domain]:
    parent, prefix, suffix = tuple(group["values"]), group.get("prefix", ""), group.get("suffix", "")
    names = group["names"]
    counts = group.get("counts") or [group["count"]] * len(names)
    for name, count in zip(names, counts, strict=True):
        yield (*parent, prefix + name + suffix), count


def _common_prefix(names: Sequence[str]) -> str:
    # One name stays whole: it would be all prefix, and nobody would find it in the object.
    return commonprefix(names) if len(names) > 1 else ""  # noqa: RUF071 - names are no paths
