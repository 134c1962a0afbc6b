"""The cases that ``topogate whatif claims`` reads: a node, all slices and classes, and the claims of one pod.

The form is described in docs/dra.md. The objects are Kubernetes' own (resource.k8s.io/v1), so fields that decide
nothing are passed over in them, and nowhere else.
"""

from typing import Annotated, Any

import msgspec

from cli.whatif.cases import Name
from engine.claims.extended import ExtendedClaim, classes_by_resource, extended_claim
from engine.claims.features import DEFAULT, Features
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse
from engine.claims.model import Claim, DeviceClass
from engine.claims.pools import Inventory
from engine.claims.read.claims import read_claim, read_class, read_node, read_uses
from engine.claims.read.pods import read_allocatable, read_containers
from engine.claims.read.slices import read_slice

MOST_PODS = 4096


class _Form(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class ClaimsNodeForm(_Form, frozen=True):
    """The node that is asked about; ``allocatable`` is what it has as plain resources."""

    name: Name
    labels: dict[str, str] = {}
    declared_features: tuple[str, ...] = ()
    allocatable: dict[str, Any] = {}


class ExpectedDevice(msgspec.Struct, frozen=True, order=True):
    """One device, as a claim's status has it."""

    request: str
    driver: str
    pool: str
    device: str


class ExpectedDevices(msgspec.Struct, frozen=True):
    """The devices of one claim."""

    results: tuple[ExpectedDevice, ...] = ()


class ExpectedAllocation(msgspec.Struct, frozen=True):
    """The allocation of one claim."""

    devices: ExpectedDevices = ExpectedDevices()


class ExpectedClaims(msgspec.Struct, frozen=True):
    """The allocator's own answer, to compare with."""

    allocatable: bool | None = None
    count: int | None = None
    results: tuple[ExpectedAllocation, ...] | None = None
    allocations: tuple[tuple[ExpectedAllocation, ...], ...] | None = None


class ClaimsForm(_Form, frozen=True):
    """One line. With ``limit``, pods are counted; ``pod`` has the containers that ask for extended resources."""

    id: str
    node: ClaimsNodeForm
    classes: list[Any]
    slices: list[Any]
    claims: list[Any]
    allocated: list[Any] = []
    features: tuple[str, ...] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_PODS)] | None = None
    pod: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    expected: ExpectedClaims | None = None
    peer: msgspec.Raw = msgspec.Raw()
    upstream: msgspec.Raw = msgspec.Raw()


class ClaimsCase(msgspec.Struct, frozen=True):
    """A valid case in the engine's words."""

    form: ClaimsForm
    hardware: NodeHardware
    claims: tuple[Claim, ...]
    classes: dict[str, DeviceClass]
    in_use: InUse
    extended: ExtendedClaim


_decoder = msgspec.json.Decoder(ClaimsForm)


def decode_claims(line: bytes) -> ClaimsCase:
    """Read one case.

    Raises:
        ValueError: (msgspec's errors and the engine's are ones) with the object, the field and what was expected there.
    """
    form = _decoder.decode(line)
    features = DEFAULT if form.features is None else Features.from_gates(form.features)
    node = read_node(form.node.name, form.node.labels, form.node.declared_features)
    classes = [read_class(one) for one in form.classes]
    claims = [read_claim(one) for one in form.claims]
    extended = ExtendedClaim()
    if form.pod is not None:
        extended = extended_claim(
            read_containers(form.pod),
            classes_by_resource(classes),
            read_allocatable(form.node.allocatable),
            has_claims=bool(claims),
        )
    return ClaimsCase(
        form=form,
        hardware=NodeHardware.for_node(Inventory.from_slices(read_slice(one) for one in form.slices), node, features),
        # Last: the pod's own claims choose their devices first.
        claims=(*claims, *(() if extended.claim is None else (extended.claim,))),
        classes={one.name: one for one in classes},
        in_use=InUse.from_uses(read_uses(form.allocated, "allocated"), shares=features.consumable_capacity),
        extended=extended,
    )
