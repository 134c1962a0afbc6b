"""How much is kept of what a namespace stores, so that nobody who may write objects fills the memory of a process.

An object of 1.5 MB, as the API server takes it, is 20 MB once it is decoded: each of its 200,000 short texts is an
object of its own. So parts count, and not bytes.

Rules
- *Parts*: the entries of all maps and lists of an object, at any depth, as far as they are read; its fields; and each
  `TEXT` bytes.
- `FREE` parts of each object are kept, and few have more. Of what the objects of a namespace have beyond that `MOST`
  parts are kept for each kind. An object that would go beyond is *cut*: its metadata says so, and it is logged once.
- A cut object has less than `FREE` parts. Of its metadata those that the program reads are kept, and who controls it;
  then its status, then the rest in order, of each list and map the first. What its containers ask for stays, so that a
  pod that runs is charged. Whoever decides by the rest of a cut object takes it for one that cannot be read.
- Objects of no namespace are not cut: no tenant writes them.
"""

from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from kube.objects import Container, Object, ObjectMeta, ResourceRequirements, key

T = TypeVar("T", bound=Object)
log = structlog.get_logger()

FREE: Final = 512
MOST: Final = 100_000  # some 10 MB
TEXT: Final = 64
LONG: Final = 16 * 1024  # characters of a text, or bytes of a template, that are not kept of a cut object
CUT: Final = "its namespace has more labels, annotations, selectors and such in objects of this kind than are kept"
_META: Final = 64  # parts of the metadata of a cut object
_CONTAINERS: Final = 129  # one more than are taken into account (`kube.pods.limits`)
_RESOURCES: Final = 65
_encode: Final = msgspec.json.Encoder().encode


class KeptParts(Generic[T]):
    """See the module, for one kind of objects. ``read``: the labels and annotations that are never cut away."""

    def __init__(self, kind: str, read: Collection[str] = (), most: int = MOST) -> None:
        self._kind = kind
        self._read = frozenset(read)
        self._most = most
        self._beyond: dict[str, int] = {}  # by key of an object: its parts beyond those that are free; 0: it is cut
        self._sums: dict[str, int] = {}  # by namespace

    def as_kept(self, obj: T, raw: bytes) -> T:
        """An object as it is to be kept; ``raw``: as it came."""
        namespace = obj.metadata.namespace
        if not namespace:
            return obj
        beyond = parts_of(obj) - FREE if _parts_in(raw) > FREE else 0  # to encode it takes twenty times as long
        # Nearly all objects end here, with one count of commas: no key is made and no table is touched.
        if beyond <= 0 and not self._beyond:
            return obj
        name = key(obj)
        before = self._beyond.get(name)
        # Its former parts go back first, or an update of a large object is weighed against the object itself.
        self.forget_object(name)
        if beyond <= 0:
            return obj
        total = self._sums.get(namespace, 0) + beyond
        if total <= self._most:
            self._beyond[name], self._sums[namespace] = beyond, total
            return obj
        self._beyond[name] = 0
        # Said once: a tenant who updates an object that is cut already decides how often this is reached.
        if before != 0:
            log.warning("object is kept in part", kind=self._kind, key=name, parts=beyond + FREE, reason=CUT)
        return cut(obj, self._read)

    def forget_object(self, name: str) -> None:
        """An object is gone, by its key."""
        parts = self._beyond.pop(name, 0)
        if not parts:
            return
        namespace = name.partition("/")[0]
        left = self._sums[namespace] - parts
        # No entry of 0: namespaces come and go, and their names would stay for ever.
        if left:
            self._sums[namespace] = left
        else:
            del self._sums[namespace]


def parts_of(obj: Object) -> int:
    """How many parts an object has, or a few more: entries have a comma between them, and so have fields."""
    return _parts_in(_encode(obj))  # takes a third as long as to decode it, and to walk it takes twice as long


def _parts_in(encoded: bytes) -> int:
    """Of an object as it came, no fewer than it has: more was in it than is read, and nothing was written shorter."""
    return encoded.count(b",") + len(encoded) // TEXT


def cut(obj: T, read: Collection[str] = ()) -> T:
    """What is kept of an object that is too large; ``read``: the labels and annotations that stay."""
    left, meta = _Left(FREE // 2 - _META), _cut_meta(obj.metadata, frozenset(read))
    names = sorted([name for name in obj.__struct_fields__ if name != "metadata"], key=lambda name: name != "status")
    return msgspec.structs.replace(obj, metadata=meta, **{name: left.keep_part(getattr(obj, name)) for name in names})


def _cut_meta(meta: ObjectMeta, read: frozenset[str]) -> ObjectMeta:
    left = _Left(_META)
    maps = {name: _first_keys(getattr(meta, name) or {}, read) for name in ("labels", "annotations")}
    # The controller goes first: a tenant may list any number of other owners before it.
    owners = sorted(meta.owner_references, key=lambda one: not one.controller)
    return msgspec.structs.replace(
        meta,
        **{
            name: {label: left.shortened(text) for label, text in found.items()} or None for name, found in maps.items()
        },
        owner_references=tuple(left.keep_part(one) for one in owners[: _META // 2]),
        finalizers=left.keep_part(meta.finalizers),
        cut=True,
    )


def _first_keys(found: dict[str, str], read: frozenset[str]) -> dict[str, str]:
    """What is read of a map, and the first of the rest."""
    rest = [name for name in found if name not in read][: _META // 4]
    return {name: text for name, text in found.items() if name in read} | {name: found[name] for name in rest}


class _Left:
    """How many parts of an object may still be kept."""

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def keep_part(self, value: Any) -> Any:
        """What is kept of a part of it."""
        kept = value
        match value:
            case ResourceRequirements():
                kept = msgspec.structs.replace(
                    value, requests=_keep_requests(value.requests), limits=_keep_requests(value.limits)
                )
            case msgspec.Struct():
                names = value.__struct_fields__
                kept = msgspec.structs.replace(value, **{name: self.keep_part(getattr(value, name)) for name in names})
            # Before the case of all tuples, which cuts by what is left: a pod that runs is charged for each container.
            case (Container(), *_):
                kept = tuple(self.keep_part(one) for one in value[:_CONTAINERS])
            case tuple() | list():
                kept = type(value)(self.keep_part(one) for one in self._some(value))
            case dict():
                kept = {name: self.keep_part(one) for name, one in self._some(value.items())}
            # An empty template decodes everywhere. That it is not the object's own is told by ``cut`` in the metadata.
            case msgspec.Raw() if len(bytes(value)) > LONG:
                kept = msgspec.Raw(b"{}")
            case str():
                kept = self.shortened(value)
        return kept

    def shortened(self, text: str) -> str:
        """A text, which stays another one than all others."""
        return text if len(text) <= LONG else f"{text[:TEXT]}-{sha256(text.encode()).hexdigest()}"

    def _some(self, found: Iterable[Any]) -> list[Any]:
        kept = [one for one, _ in zip(found, range(self._parts), strict=False)]
        self._parts -= len(kept)
        return kept


def _keep_requests(amounts: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is asked for; of very many resources those of which some is asked for, as no node has all the others."""
    if amounts is None or len(amounts) <= _RESOURCES:
        return amounts
    some = [name for name, amount in amounts.items() if str(amount) != "0"]
    return {name: amounts[name] for name in some[:_RESOURCES]}
