"""Domains with too large a share of what belongs together: they are left out, or come last (`ShareLimits`).

Rules, as in Kueue from 0.20 on (KEP-13746; pkg/cache/scheduler/tas_spreading.go)
- A domain is over its share where ``count > share * total``, before the pod set is counted. The first may go anywhere.
- Required: a domain over its share takes none. A flavor without the level takes none either.
- Domains that have some and may have more come first, then those that have none; Preferred: those over their share come
  last, the least used first, and a level that a flavor lacks is passed over. The widest level is looked at first.
- A rule below the requested level is refused: the pods are in one domain of that level, and leave nothing to choose.

Asked only where a workload is placed: more pods of one go where the others are, so no domain has one more.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.filters import Mask
from engine.cluster.levels import domain_in_words, word_of
from engine.cluster.share_index import Census
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path, Tree
from engine.model import PodSet, ShareLimits, ShareRule
from engine.reasons import Reason
from engine.reservation_key import HolderKey
from engine.results import Refusal

_CLOSED = -1
_USED, _UNUSED, _OVER = 0, 1, 2  # and more, by how many are there
_MOST_TOLD = 3


class OverShare(msgspec.Struct, frozen=True):
    """A domain with more than its share, which takes none for that."""

    rule: ShareRule
    path: Path
    count: int
    total: int


class Shares(msgspec.Struct, frozen=True):
    """One pod set (or group) on one flavor: ``codes`` by leaf, the less the better, and which domains are closed."""

    tree: Tree
    limits: ShareLimits
    codes: Ints
    closed: tuple[OverShare, ...]

    @classmethod
    def of_pod_set(cls, state: ClusterState, flavor: str, pod_set: PodSet, own: HolderKey) -> "Shares | Refusal | None":
        """How the domains stand now; None where nothing limits them. ``own``: the workload, which does not count."""
        limits = pod_set.topology.shares
        if limits is None or (tree := state.tree(flavor)) is None or not tree.size:
            return None
        census = Census.of_pod_set(pod_set)
        levels = tree.flavor.levels
        if wrong := _wrong_rule(limits, levels, pod_set, flavor):
            return wrong
        ranked = sorted((levels.index(rule.level), rule) for rule in limits.rules if rule.level in levels)
        counts = state.share_index.occupied(census, (flavor, levels), own) if census is not None else {}
        total, codes, closed = counts.get((), 0), np.zeros(tree.size, np.int64), list[OverShare]()
        out = np.zeros(tree.size, np.bool_)
        for rank, rule in ranked:
            tiers = np.full(tree.count_domains(rank), _UNUSED, np.int64)
            there = {path: at for at in range(len(tiers)) if (path := tree.path(rank, at)) in counts}
            for path, at in there.items():
                # In whole thousandths: with floats 3 of 10 would be more than a share of 0.3.
                over = 1000 * counts[path] > rule.most * total
                if over and rule.required:
                    closed.append(OverShare(rule, path, counts[path], total))
                tiers[at] = _USED if not over else _CLOSED if rule.required else _OVER + counts[path]
            by_leaf = tiers[tree.owners[rank]]
            out |= by_leaf == _CLOSED
            # A digit for each rule, the widest first. What is closed is no digit, and set once all rules were asked.
            codes = codes * (total + _OVER + 1) + by_leaf
        codes[out] = _CLOSED
        return cls(tree, limits, codes, tuple(closed))

    def rounds(self) -> Iterator[Mask]:
        """The leaves to try, the best first."""
        for code in np.unique(self.codes).tolist():
            if code != _CLOSED:
                mask: Mask = self.codes == code
                yield mask

    @property
    def open_leaves(self) -> Mask:
        """All that are not closed."""
        mask: Mask = self.codes != _CLOSED
        return mask

    def explained(self, refusal: Refusal | None, pod_set: PodSet) -> Refusal:
        """A refusal with the domains that are closed; of None, because all are."""
        flavor = self.tree.flavor.name
        why = _closed_in_words(self.closed)
        if refusal is not None:
            # Pods that fit nowhere, whoever ends, would not fit into what is closed either.
            told = self.closed and refusal.reason is not Reason.NEVER_FITS
            return msgspec.structs.replace(refusal, message=f"{refusal.message}; {why}") if told else refusal
        level = word_of(self.closed[0].rule.level)
        text = f"no {level} of flavor {flavor} may take one more: {why}"
        return Refusal(Reason.DOES_NOT_FIT, f"{text}{self._too_few()}", pod_set.name, flavor)

    def _too_few(self) -> str:
        """That there are never enough domains, once all of them are in use."""
        for rule in self.limits.rules:
            if rule.required and rule.level in self.tree.flavor.levels:
                there, needed = (
                    self.tree.count_domains(self.tree.flavor.levels.index(rule.level)),
                    -(-1000 // rule.most),
                )
                if there < needed:
                    return f". A share of {_percent(rule)} needs at least {needed} of them, and there are {there}"
        return ""


def _wrong_rule(limits: ShareLimits, levels: Sequence[str], pod_set: PodSet, flavor: str) -> Refusal | None:
    level = pod_set.topology.level or ""
    for rule in limits.rules:
        if rule.level not in levels:
            if rule.required:
                text = f"flavor {flavor} has no level {rule.level}, whose share is limited; its levels are: "
                return Refusal(Reason.UNKNOWN_LEVEL, text + ", ".join(levels), pod_set.name, flavor)
        elif level in levels and levels.index(rule.level) > levels.index(level):
            text = (
                f"the share of a {word_of(rule.level)} cannot be limited: it is narrower than the {word_of(level)} "
                "that has to have all pods; limit that, or a wider one"
            )
            return Refusal(Reason.INVALID_REQUEST, text, pod_set.name, flavor)
    return None


def _closed_in_words(closed: Sequence[OverShare]) -> str:
    told = [
        f"{word_of(one.rule.level)} {domain_in_words(one.path)} has {one.count} of {one.total} that belong together, "
        f"more than {_percent(one.rule)}"
        for one in closed[:_MOST_TOLD]
    ]
    if (more := len(closed) - _MOST_TOLD) > 0:
        told.append(f"so have {more} more")
    return ", ".join(told)


def _percent(rule: ShareRule) -> str:
    return f"{rule.most / 10:g}%"
