"""What a pod asks for by claims, from the specs of the templates that these are made of."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from engine.claims.asks import OWN, DeviceAsk, ExtendedRequest
from engine.claims.extended import CLAIM_NAME
from engine.claims.model import Claim
from engine.claims.read.claims import read_claim


def text_of(spec: object) -> str:
    """What the ``spec`` of a ResourceClaim asks for, as JSON: equal for those that ask for the same."""
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    # Sorted keys: the text is what makes two claims equal, whatever order their authors wrote fields in.
    return msgspec.json.encode({"devices": devices}, order="sorted").decode()


def read_ask(
    claims: Sequence[tuple[str, str, str]],
    extended: tuple[ExtendedRequest, ...] = (),
    named: tuple[str, ...] = (),
) -> DeviceAsk:
    """(name in the pod, what it is (`Named`), `text_of` the claim) in the order in which the pod has them.

    ``extended`` and ``named``: as ``extended`` and ``claims`` of `DeviceAsk`.

    Raises:
        ObjectError: a claim is none; the error names the field.
    """
    counted = tuple([(name, what) for name, what, _ in claims])
    ask = DeviceAsk(f"[{','.join(text for _, _, text in claims)}]", counted, extended, named)
    # For its error: whoever has an ask may rely on it that its claims can be read.
    claims_of(ask)
    return ask


@lru_cache(maxsize=1024)
def resources_of(ask: DeviceAsk) -> frozenset[str]:
    """The extended resources that are asked of devices where no plugin gives them."""
    return frozenset([one.resource for one in ask.extended])


@lru_cache(maxsize=1024)
def at_node(ask: DeviceAsk, published: frozenset[str], held: frozenset[str] = frozenset()) -> DeviceAsk | None:
    """What is asked of a node whose device plugins give ``published`` of the resources; None for no devices at all.

    ``held``: of the claims that the pod names (``namespace/name``) those that have devices by now, wherever that is.
    """
    # Without the held claims first. If nothing is left, the node is asked for nothing.
    if held:
        return at_node(_ask_without_held(ask, held), published)
    left = [one for one in ask.extended if one.resource not in published]
    if not left:
        return DeviceAsk(ask.key, ask.named) if ask.named else None
    requests = [{"name": one.name, "exactly": {"deviceClassName": one.class_name, "count": one.count}} for one in left]
    # The brackets of the list come off, for a request of the scheduler's own claim is put behind the others.
    texts = [*([ask.key[1:-1]] if ask.named else ()), text_of({"devices": {"requests": requests}})]
    return DeviceAsk(f"[{','.join(texts)}]", (*ask.named, (CLAIM_NAME, "")))


@lru_cache(maxsize=1024)
def claims_of(ask: DeviceAsk) -> tuple[Claim, ...]:
    """The claims of each pod, but for the scheduler's own.

    Raises:
        ObjectError: never, for what `read_ask` gave.
    """
    specs = zip(ask.named, msgspec.json.decode(ask.key), strict=True)
    return tuple([read_claim({"metadata": {"name": name}, "spec": spec}) for (name, _), spec in specs])


@lru_cache(maxsize=1024)
def classes_of(ask: DeviceAsk) -> frozenset[str]:
    """The DeviceClasses that the claims name."""
    found = [one.class_name for one in ask.extended]
    for request in (one for claim in claims_of(ask) for one in claim.requests):
        found += [one.class_name for one in (request.exactly, *request.alternatives) if one is not None]
    return frozenset(found)


def _ask_without_held(ask: DeviceAsk, held: frozenset[str]) -> DeviceAsk:
    """The same without what is held of claims that the pod names."""
    # Claims are known by namespace and name, and a pod names them without namespace: they are all in its own.
    names = {f"{OWN}{one.partition('/')[2]}" for one in held}
    kept = [at for at, (_, what) in enumerate(ask.named) if what not in names]
    if len(kept) == len(ask.named):
        return ask
    specs = msgspec.json.decode(ask.key)
    key = f"[{','.join(text_of(specs[at]) for at in kept)}]"
    return DeviceAsk(key, tuple([ask.named[at] for at in kept]), ask.extended, ask.claims, ask.shared, ask.aligned)


def same_devices(one: DeviceAsk, other: DeviceAsk) -> bool:
    """Whether pods with the one get the same devices as pods with the other: names in the pod are nothing to them.

    ``other`` is what was promised: of the claims that it counts, the one may have devices by now.
    """
    if one.claims != other.claims:
        return False
    counted = {what for _, what in one.named}
    # Only claims that are there can have got devices since; those of templates are made for each pod.
    gone = [what for _, what in other.named if what.startswith(OWN) and what not in counted]
    if gone:
        namespace = other.claims[0].partition("/")[0]
        other = _ask_without_held(other, frozenset([f"{namespace}/{what.removeprefix(OWN)}" for what in gone]))
    if [_comparable_request(each) for each in one.extended] != [_comparable_request(each) for each in other.extended]:
        return False
    return one.key == other.key or [(claim.requests, claim.constraints) for claim in claims_of(one)] == [
        (claim.requests, claim.constraints) for claim in claims_of(other)
    ]


def _comparable_request(request: ExtendedRequest) -> tuple[str, str, int]:
    """All but the name: that counts the resources of a container, and a pod may have more of them than its template."""
    return request.resource, request.class_name, request.count
