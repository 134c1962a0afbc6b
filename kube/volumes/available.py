"""The volumes that a claim without one may be bound to, and the nodes that those reach.

Many claims may ask in one question, and there may be many volumes: each volume is looked at once, and claims that want
the same are answered once. Sizes between two of what there is are the same wish. A claim may be one that a tenant made,
so what it selects volumes by is bounded (`too_selective`), and so are the ways in which the claims of one question do.

A volume that is kept for a claim (it names the claim, which does not name it yet) is bound to it at once by the
PersistentVolume controller, also where the class waits for a pod: the claim goes where that volume reaches, and has
neither a free one nor one that would be made. Source: ``FindMatchingVolume`` and ``syncUnboundClaim``, 1.37.1.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from engine.cluster.filters import selects
from engine.model import HOSTNAME_LABEL, LabelRequirement, NodeTerm
from engine.quantity import parse
from kube import objects
from kube.objects import ClaimSpec
from kube.pods import limits
from kube.pods.convert import label_selector, node_terms
from kube.volumes.capacity import StorageLeft
from kube.volumes.objects import (
    NO_PROVISIONER,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeSpec,
    StorageClass,
)
from kube.volumes.terms import MOST_REQUIREMENTS, MOST_VALUES, Terms, both, merged, size_of

MOST_WISHES: Final = 8  # different ones of one question that are answered, whatever they take
MOST_COMPARED: Final = 1 << 17  # volumes that the wishes of one question are compared with beyond that, some 0.1 s


class _Form(NamedTuple):
    """What a volume and a claim have to have alike, whatever the volume is kept for."""

    mode: str
    attributes: str  # the name of the VolumeAttributesClass


class _Kept(NamedTuple):
    """A volume that is kept for a claim."""

    form: _Form
    size: int
    terms: Terms | None


class _Kind(NamedTuple):
    """What volumes are alike in."""

    form: _Form
    access_modes: frozenset[str]
    labels: tuple[tuple[str, str], ...]


class _Wish(NamedTuple):
    """What claims of a class are alike in. ``least``: the smallest size of a volume that will do.

    ``left``: what tells apart where a driver has as much storage left.
    """

    form: _Form
    access_modes: frozenset[str]
    selector: tuple[LabelRequirement, ...] | None
    least: int
    left: int = 0


class _Class(msgspec.Struct, frozen=True):
    """The available volumes of a class: those that are kept for a claim, by its key, and those for anybody.

    ``sizes`` has the different ones, ascending; ``found`` the nodes of what was wished for; None: all nodes. ``left``:
    where its driver has storage left; None where that is not told, or its class makes no volumes.
    """

    kept: dict[str, list[_Kept]] = msgspec.field(default_factory=dict)
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

    def terms_of_claim(self, of: StorageClass, spec: ClaimSpec, key: str) -> Terms | None:
        """Where a claim of a class (``namespace/name``) may have a volume, or have one made; None: on all nodes.

        Raises TooManyWishes where claims before it were about as much as one question may be.
        """
        known = self._classes.get(of.metadata.name)
        if known is None:
            made = None if of.provisioner in {"", NO_PROVISIONER} else self._left(of)
            left = None if made is None else StorageLeft(made)
            known = self._classes[of.metadata.name] = replace(_read(self._of_class(of.metadata.name)), left=left)
        size, form = _storage(spec.resources.requests if spec.resources else None), _form_of(spec)
        # As FindMatchingVolume does: a volume kept for the claim is compared by neither selector nor access modes.
        if mine := [one.terms for one in known.kept.get(key, ()) if one.form == form and one.size >= size]:
            return _united(mine)
        at = bisect_left(known.sizes, size)
        wish = _Wish(
            form=form,
            access_modes=frozenset(spec.access_modes or ()),
            selector=label_selector(spec.selector),
            least=known.sizes[at] if at < len(known.sizes) else size,
            left=known.left.size_class(size) if known.left is not None else 0,
        )
        if at == len(known.sizes):
            return self._made(of, known, (), size)  # none is that large
        if wish not in known.found:
            # Before the comparison: a question that is too much ends here, and costs no more.
            self._count_selectors(known.number)
            known.found[wish] = self._made(of, known, _united(_matching(known, wish)), size)
        return known.found[wish]

    def _made(self, of: StorageClass, known: _Class, terms: Terms | None, size: int) -> Terms | None:
        """The same, and where the class has volumes of this size made: where its driver has storage left for them."""
        if terms is None or of.provisioner in {"", NO_PROVISIONER}:
            return terms
        made, left = _topologies(of), known.left
        if left is not None and size:  # kube-scheduler looks for no storage for a claim that asks for none
            if not left.knows(size):
                self._count_selectors(len(left))
            made = both(made, left.terms_for_size(size))
        return _united([terms, made])

    def _count_selectors(self, number: int) -> None:
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
        terms, kept, form = terms_of(volume), volume.spec.claim_ref, _form_of(volume.spec)
        size = _storage(volume.spec.capacity)
        if terms is not None and size_of(terms) > MOST_REQUIREMENTS:
            # One that is kept is bound to its claim all the same, which then reaches no node that is known.
            if kept is None:
                continue
            terms = ()
        if kept is not None:
            found.kept.setdefault(f"{kept.namespace}/{kept.name}", []).append(_Kept(form, size, terms))
            continue
        labels = tuple(sorted((volume.metadata.labels or {}).items()))
        kind = _Kind(form, frozenset(volume.spec.access_modes or ()), labels)
        found.free.setdefault(kind, []).append((size, terms))
    found.sizes.extend(sorted({size for alike in found.free.values() for size, _ in alike}))
    return found


def _matching(known: _Class, wish: _Wish) -> list[Terms | None]:
    return [
        terms
        for kind, alike in known.free.items()
        if kind.form == wish.form
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


def _form_of(spec: ClaimSpec | PersistentVolumeSpec) -> _Form:
    return _Form(spec.volume_mode or "Filesystem", spec.volume_attributes_class_name)


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
                        LabelRequirement(key=one.key, operator="In", values=(one.values or ())[:MOST_VALUES])
                        for one in term.match_label_expressions
                    ]
                )
            )
            for term in found.allowed_topologies[:MOST_REQUIREMENTS]
            # Its expressions are ANDed: without some of them it would let in nodes that are not of the class. One
            # without any lets in no node (MatchTopologySelectorTerms), also where it is joined to what has some.
            if term.match_label_expressions and len(term.match_label_expressions) <= MOST_REQUIREMENTS
        ]
    )
