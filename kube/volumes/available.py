"""The volumes that a claim without one may be bound to, and the nodes that those reach.

Many claims may ask in one question, and there may be many volumes: each volume is looked at once, and claims that want
the same are answered once. Sizes between two of what there is are the same wish. A claim may be one that a tenant made,
so what it selects volumes by is bounded (`too_selective`), and so are the ways in which the claims of one question do.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from engine.cluster.filters import selects
from engine.model import HOSTNAME_LABEL, NodeTerm, Requirement
from engine.quantity import parse
from kube import objects
from kube.objects import ClaimSpec
from kube.pods import limits
from kube.pods.convert import label_selector, node_terms
from kube.volumes.capacity import StorageLeft
from kube.volumes.objects import NO_PROVISIONER, CsiStorageCapacity, PersistentVolume, StorageClass
from kube.volumes.terms import MOST_REQUIREMENTS, MOST_VALUES, Terms, both, merged, size_of

MOST_WISHES: Final = 8  # different ones of one question that are answered, whatever they take
MOST_COMPARED: Final = 1 << 17  # volumes that the wishes of one question are compared with beyond that, some 0.1 s


class _Kind(NamedTuple):
    """What volumes are alike in."""

    mode: str
    access_modes: frozenset[str]
    labels: tuple[tuple[str, str], ...]


class _Wish(NamedTuple):
    """What claims of a class are alike in. ``least``: the smallest size of a volume that will do.

    ``left``: what tells apart where a driver has as much storage left.
    """

    mode: str
    access_modes: frozenset[str]
    selector: tuple[Requirement, ...] | None
    least: int
    left: int = 0


class _Class(msgspec.Struct, frozen=True):
    """The available volumes of a class: those that are kept for a claim, by its key, and those for anybody.

    ``sizes`` has the different ones, ascending; ``found`` the nodes of what was wished for; None: all nodes. ``left``:
    where its driver has storage left; None where that is not told, or its class makes no volumes.
    """

    kept: dict[str, list[tuple[str, Terms | None]]] = msgspec.field(default_factory=dict)
    free: dict[_Kind, list[tuple[int, Terms | None]]] = msgspec.field(default_factory=dict)
    sizes: list[int] = msgspec.field(default_factory=list)
    found: dict[_Wish, Terms | None] = msgspec.field(default_factory=dict)
    left: StorageLeft | None = None

    @property
    def number(self) -> int:
        """How many are for anybody."""
        return sum(map(len, self.free.values()))


class TooManyWishes(Exception):  # noqa: N818 - it is an answer
    """Claims of one question want volumes in more different ways than are looked at."""


class Available:
    """The available volumes of classes, for one question: they are not to change meanwhile.

    ``left``: what the driver of a class has left; None where it does not tell.
    """

    def __init__(
        self,
        of_class: Callable[[str], Iterable[PersistentVolume]],
        left: Callable[[StorageClass], Iterable[CsiStorageCapacity] | None],
    ) -> None:
        self._of_class = of_class
        self._left = left
        self._classes: dict[str, _Class] = {}
        self._wishes = self._compared = 0

    def nodes(self, of: StorageClass, spec: ClaimSpec, key: str) -> Terms | None:
        """Where a claim of a class (``namespace/name``) may have a volume, or have one made; None: on all nodes.

        Raises TooManyWishes where claims before it were about as much as one question may be.
        """
        known = self._classes.get(of.metadata.name)
        if known is None:
            made = None if of.provisioner in {"", NO_PROVISIONER} else self._left(of)
            left = None if made is None else StorageLeft(made)
            known = self._classes[of.metadata.name] = replace(_read(self._of_class(of.metadata.name)), left=left)
        size = _storage(spec.resources.requests if spec.resources else None)
        at = bisect_left(known.sizes, size)
        wish = _Wish(
            mode=spec.volume_mode or "Filesystem",
            access_modes=frozenset(spec.access_modes or ()),
            selector=label_selector(spec.selector),
            least=known.sizes[at] if at < len(known.sizes) else size,
            left=known.left.at(size) if known.left is not None else 0,
        )
        if at == len(known.sizes):
            found = self._made(of, known, (), size)  # none is that large
        elif wish in known.found:
            found = known.found[wish]
        else:
            # Before the comparison: a question that is too much ends here, and costs no more.
            self._count(known.number)
            found = known.found[wish] = self._made(of, known, _united(_matching(known, wish)), size)
        # As FindMatchingVolume does: a volume kept for the claim is compared by neither selector nor access modes.
        mine = [terms for mode, terms in known.kept.get(key, ()) if mode == wish.mode]
        return _united([*mine, found]) if mine else found

    def _made(self, of: StorageClass, known: _Class, terms: Terms | None, size: int) -> Terms | None:
        """The same, and where the class has volumes of this size made: where its driver has storage left for them."""
        if terms is None or of.provisioner in {"", NO_PROVISIONER}:
            return terms
        made, left = _topologies(of), known.left
        if left is not None and size:  # kube-scheduler looks for no storage for a claim that asks for none
            if not left.knows(size):
                self._count(len(left))
            made = both(made, left.nodes(size))
        return _united([terms, made])

    def _count(self, number: int) -> None:
        """Every claim may select in another way, and each way is compared with every volume."""
        if self._wishes >= MOST_WISHES and self._compared >= MOST_COMPARED:
            raise TooManyWishes
        self._wishes, self._compared = self._wishes + 1, self._compared + number


def too_selective(spec: ClaimSpec) -> bool:
    """Whether a claim selects volumes by more than is taken into account."""
    selector = spec.selector
    needs = selector.match_expressions or () if selector is not None else ()
    labels = selector.match_labels or () if selector is not None else ()
    values = sum(len(need.values or ()) for need in needs)
    return len(labels) + len(needs) > limits.MOST_REQUIREMENTS or values > limits.MOST_VALUES


def host_of(volume: PersistentVolume) -> str:
    """The host name of the nodes that a volume is on that any claim may be bound to; "" where that is not one."""
    terms = terms_of(volume) if is_available(volume) and volume.spec.claim_ref is None else None
    if terms is None or len(terms) != 1:
        return ""
    hosts = (need.values for need in terms[0].labels if need.key == HOSTNAME_LABEL and need.operator == "In")
    return next((values[0] for values in hosts if len(values) == 1), "")


def is_available(volume: PersistentVolume) -> bool:
    """Whether a claim may be bound to the volume, as far as the volume tells."""
    return (
        volume.metadata.deletion_timestamp is None
        # A volume that names a claim counts before its controller has made it Available.
        and (volume.spec.claim_ref is not None or volume.status.phase == "Available")
        and volume.status.phase not in {"Bound", "Released", "Failed"}
    )


def terms_of(volume: PersistentVolume) -> Terms | None:
    """The node affinity of a volume; None where it has none."""
    affinity = volume.spec.node_affinity
    required = affinity.required if affinity is not None else None
    if required is None or (required.node_selector_terms or ()) == ():
        return None if required is None else ()
    return node_terms(required)


def _read(volumes: Iterable[PersistentVolume]) -> _Class:
    found = _Class()
    for volume in volumes:
        if not is_available(volume):
            continue
        terms, kept, mode = terms_of(volume), volume.spec.claim_ref, volume.spec.volume_mode or "Filesystem"
        if terms is not None and size_of(terms) > MOST_REQUIREMENTS:
            continue
        if kept is not None:
            found.kept.setdefault(f"{kept.namespace}/{kept.name}", []).append((mode, terms))
            continue
        labels = tuple(sorted((volume.metadata.labels or {}).items()))
        kind = _Kind(mode, frozenset(volume.spec.access_modes or ()), labels)
        found.free.setdefault(kind, []).append((_storage(volume.spec.capacity), terms))
    found.sizes.extend(sorted({size for alike in found.free.values() for size, _ in alike}))
    return found


def _matching(known: _Class, wish: _Wish) -> list[Terms | None]:
    return [
        terms
        for kind, alike in known.free.items()
        if kind.mode == wish.mode
        and wish.access_modes <= kind.access_modes
        and (wish.selector is None or selects(wish.selector, dict(kind.labels)))
        for size, terms in alike
        if size >= wish.least
    ]


def _united(found: Iterable[Terms | None]) -> Terms | None:
    """Where any of these is."""
    # A dict and not a set: the order is that of the volumes, so equal inputs give equal terms.
    different = dict.fromkeys(found)
    return None if None in different else merged([term for terms in different for term in terms or ()])


def _storage(amounts: objects.Quantities | None) -> int:
    try:
        return parse("storage", (amounts or {}).get("storage", 0))
    except ValueError:
        return 0


def _topologies(found: StorageClass) -> Terms | None:
    """The nodes for which a class makes volumes; None where that is all."""
    if not found.allowed_topologies:
        return None
    return tuple(
        [
            NodeTerm(
                labels=tuple(
                    [
                        Requirement(key=one.key, operator="In", values=(one.values or ())[:MOST_VALUES])
                        for one in (term.match_label_expressions or ())[:MOST_REQUIREMENTS]
                    ]
                )
            )
            for term in found.allowed_topologies[:MOST_REQUIREMENTS]
        ]
    )
