"""Requests made ready for the search: their classes, their selectors, and for ``All`` the devices that are meant."""

from collections.abc import Mapping

import msgspec

from engine.claims.budget import Budget
from engine.claims.cel.errors import CelError, CompileError
from engine.claims.cel.selectors import Program, Selectors
from engine.claims.errors import AllocationError
from engine.claims.features import Features
from engine.claims.hardware import NodeHardware, Reachable
from engine.claims.model import ALL, EXACT_COUNT, Ask, Attribute, Claim, DeviceClass
from engine.claims.pools import reaches
from engine.claims.searching.capacities import CapacityError, Consumption, consumption


class Ready(msgspec.Struct):
    """One request, or alternative, ready for the search. Answers are kept by the device's index on the node.

    ``unfit`` has the devices that were asked about and are not selected, whoever uses them.
    """

    claim: str
    ask: Ask
    parent: str  # of an alternative: the request's name
    selectors: tuple[tuple[str, Program], ...]  # who asks, and what
    derived: Mapping[str, Program]
    count: int = 0
    all_devices: list[int] = msgspec.field(default_factory=list)
    unfit: set[int] = msgspec.field(default_factory=set)
    _matches: dict[int, bool] = msgspec.field(default_factory=dict)
    _takes: dict[int, Consumption] = msgspec.field(default_factory=dict)
    _tolerated: dict[int, bool] = msgspec.field(default_factory=dict)

    @property
    def base(self) -> str:
        """The name that constraints know it by."""
        return self.parent or self.ask.name

    @property
    def full_name(self) -> str:
        """The same with the alternative's."""
        return f"{self.parent}/{self.ask.name}" if self.parent else self.ask.name

    @property
    def admin(self) -> bool:
        """Whether it only looks at devices, whoever uses them; alternatives never do."""
        return bool(self.ask.admin) and not self.parent

    def mean(self, devices: list[int]) -> None:
        """Have it mean these devices, and all of them."""
        self.all_devices, self.count = devices, len(devices)

    def matches(self, index: int, one: Reachable, hardware: NodeHardware, budget: Budget) -> bool:
        """Whether a device is of its class, meets its selectors and is for the node.

        Raises:
            AllocationError: an expression is none, or fails on the device.
        """
        # Before the cached answer and before any expression: with the gate off such a device is never asked about.
        if not hardware.features.binding_conditions and one.device.binding_conditions:
            return False
        found = self._matches.get(index)
        if found is None:
            # The expressions come first: one that fails on a device of another node ends the pod all the same.
            found = self._matches[index] = self._selected(one, budget) and (
                not one.slice.per_device or reaches(one.device.reach, hardware.node)
            )
        return found

    def consumption_of(self, index: int, one: Reachable, features: Features) -> Consumption:
        """What it takes of a device's capacities.

        Raises:
            AllocationError: an amount that cannot be represented.
        """
        found = self._takes.get(index)
        if found is None:
            try:
                found = consumption(one.device, self.ask.capacity, fractional=features.fractional_capacity)
            except CapacityError as error:
                raise self.error(f"checking capacity for device {one}: {error}") from error
            self._takes[index] = found
        return found

    def tolerates(self, index: int, one: Reachable) -> bool:
        """Whether it tolerates all taints of a device that keep others away."""
        found = self._tolerated.get(index)
        if found is None:
            found = self._tolerated[index] = all(
                # An effect of None informs and keeps nobody away: NVIDIA's driver puts it on a GPU after Xid 31.
                taint.effect not in {"NoSchedule", "NoExecute"}
                or any(toleration.tolerates(taint) for toleration in self.ask.tolerations)
                for taint in one.device.taints
            )
        return found

    def attribute(self, one: Reachable, budget: Budget, qualified: str) -> Attribute | None:
        """An attribute of a device, as constraints of the claim know it.

        Raises:
            AllocationError: it stands for an expression that fails.
        """
        program = self.derived.get(qualified)
        if program is None:
            return one.device.attribute(qualified)
        try:
            return _derived(program.value(one.device, budget))
        except CelError as error:
            raise AllocationError(f"evaluate derived attribute {qualified} on device {one} failed: {error}") from error

    def error(self, message: str) -> AllocationError:
        """An error about it."""
        return AllocationError(f"claim {self.claim}, request {self.ask.name}: {message}")

    def _selected(self, one: Reachable, budget: Budget) -> bool:
        # Class before request, and the first that says no ends it: a later expression that would fail is not evaluated.
        for asker, program in self.selectors:
            try:
                if not program.matches(one.device, budget):
                    return False
            except CompileError as error:
                raise AllocationError(f"{asker}: CEL compile error: {program.expression!r}: {error}") from error
            except CelError as error:
                raise AllocationError(
                    f"{asker} on device {one}: CEL runtime error: {program.expression!r}: {error}"
                ) from error
        return True


def _derived(value: object) -> Attribute:
    kinds = {bool: "bool", int: "int", str: "string"}
    if type(value) in kinds:
        return Attribute(kinds[type(value)], value)  # type: ignore[arg-type] # one of the three
    raise CelError(f"unsupported CEL return type: {type(value).__name__}")


class RequestContext(msgspec.Struct, frozen=True):
    """What requests refer to: classes by name, and expressions that were compiled before; and what it may cost."""

    classes: Mapping[str, DeviceClass]
    selectors: Selectors
    budget: Budget

    def program(self, expression: str) -> Program:
        """The program of an expression; where it has to be compiled, the budget says so."""
        # Asked before `program`, which makes it known.
        if not self.selectors.knows(expression):
            self.budget.compile(len(expression))
        return self.selectors.program(expression)


def ready(claim: Claim, ask: Ask, parent: str, known: RequestContext, hardware: NodeHardware) -> Ready:
    """One request, or alternative (of ``parent``), with its class and, for all of them, the devices that it means.

    Raises:
        AllocationError: it cannot be handled, or its class is not there.
    """
    where = f"claim {claim.name}, request {ask.name}"
    if ask.derived and not hardware.features.derived_attributes:
        raise AllocationError(f"{where}: cannot handle request with derived attributes, the feature is disabled")
    for index, selector in enumerate(ask.selectors):
        if selector is None:
            raise AllocationError(f"{where}, selector #{index}: CEL expression empty (unsupported selector type?)")
    if ask.admin is not None and not parent and not hardware.features.admin_access:
        raise AllocationError(f"{where}: admin access is requested, but the feature is disabled")
    if not ask.class_name:
        raise AllocationError(f"{where}: missing device class name (unsupported request type?)")
    device_class = known.classes.get(ask.class_name)
    if device_class is None:
        raise AllocationError(f"{where}: could not retrieve device class {ask.class_name}: not found")
    if ask.mode not in {EXACT_COUNT, ALL}:
        raise AllocationError(f"{where}: unsupported count mode {ask.mode}")
    asked = (
        *((f"class {device_class.name}: selector #{index}", text) for index, text in enumerate(device_class.selectors)),
        *((f"claim {claim.name}: selector #{index}", text) for index, text in enumerate(ask.selectors)),
    )
    request = Ready(
        claim=claim.name,
        ask=ask,
        parent=parent,
        # A class selector of an unknown kind is an empty expression here. It fails where the search first asks it.
        selectors=tuple((asker, known.program(text or "")) for asker, text in asked),
        derived={name: known.program(expression) for name, expression in ask.derived.items()},
        count=ask.count,
    )
    if ask.mode == ALL:
        request.mean(_all_devices(request, hardware, known.budget))
    return request


def _all_devices(request: Ready, hardware: NodeHardware, budget: Budget) -> list[int]:
    """The devices that a request for all of them means.

    Raises:
        AllocationError: a pool is not complete or contradicts itself, so nobody knows what all are.
    """
    features = hardware.features
    found: list[int] = []
    for pool, indexes in hardware.by_pool:
        # Any pool of the node, also another driver's: nobody knows yet what its devices are. Kubernetes fails at once
        # as well.
        if pool.incomplete or pool.invalid:
            state = "being updated" if pool.incomplete else "invalid"
            raise request.error(f"asks for all devices, but resource pool {pool.name} is currently {state}")
        for index in indexes:
            one = hardware.candidates[index]
            # Also devices in use: "All" means them, and so the request fails while somebody else has one.
            if request.matches(index, one, hardware, budget) and (
                not features.consumable_capacity or request.consumption_of(index, one, features).amounts is not None
            ):
                found.append(index)
    return found
