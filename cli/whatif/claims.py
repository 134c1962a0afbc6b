"""``topogate whatif claims``: which devices a pod's ResourceClaims get on a described node, or how many such pods fit.

docs/dra.md describes both forms. Answers are compared with recorded ones (``expected``) on demand.
"""

from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from cli.whatif.claims_cases import ClaimsCase, ExpectedDevice, decode_claims
from cli.whatif.output import CaseFile, Cell, Compare, EqualCounts, LinesFormat, LinesOutput, answer_cases
from engine.claims.allocate import allocate, prepare
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.count import count
from engine.claims.results import Allocation, Outcome
from engine.claims.searching.requests import RequestContext

HEADINGS = ("Case", "Fits", "Devices, or why not")


class DeviceAnswer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One device for one request, as a claim's status has it."""

    request: str
    driver: str
    pool: str
    device: str
    consumed_capacity: dict[str, str] = {}
    admin_access: bool = False


class MappingAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Which request of the scheduler's claim a container's extended resource comes from."""

    container_name: str
    request_name: str
    resource_name: str


Devices = tuple[tuple[DeviceAnswer, ...], ...]  # of each claim


class ClaimsAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One decision: ``allocatable`` or ``count``, and the devices of the pod, or of each pod.

    ``reason`` says why there are no devices, or no more: unallocatable, invalid-pool, error (the scheduler would stop)
    or given-up.
    """

    id: str
    allocatable: bool | msgspec.UnsetType = msgspec.UNSET
    count: int | msgspec.UnsetType = msgspec.UNSET
    results: Devices | tuple[Devices, ...]
    reason: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    request_mappings: tuple[MappingAnswer, ...] | msgspec.UnsetType = msgspec.UNSET


class AllocatorAgreement(EqualCounts):
    """The allocator's answers beside ours."""

    def add(self, case: ClaimsCase, pods: tuple[Allocation, ...]) -> None:
        """Compare the allocations of one case."""
        expected = case.form.expected
        if expected is None:
            return
        counted = expected.count is not None
        same = len(pods) == expected.count if counted else bool(pods) == expected.allocatable
        self.count_answer("pods that fit" if counted else "allocatable", same)
        theirs = expected.allocations if counted else (expected.results or (),)
        if same and pods and theirs is not None:
            # The devices of each claim of each pod, by request.
            ours = [
                [sorted(ExpectedDevice(given.request, *given.device) for given in claim) for claim in pod.claims]
                for pod in pods
            ]
            expecting = [[sorted(claim.devices.results) for claim in claims] for claims in theirs]
            self.count_answer("devices, where as many fit", ours == expecting)

    def agreement_table(self) -> Table:
        """What agrees."""
        table = self.counts_table("Compared with the allocator", "equal", "of", "%")
        if not self.rows:
            table.add_row("nothing to compare: no case carries an answer", "", "", "")
        return table


def command(
    file: CaseFile,
    output: LinesOutput = LinesFormat.JSONL,
    compare: Compare = False,
) -> None:
    """Say which devices the claims of a pod get on a described node, as Kubernetes' allocator would give them.

    A case is one line: its id, the node, the cluster's classes and slices, the pod's claims, and the devices that are
    allocated. With a limit, pods are counted one after another. docs/dra.md has every field.

    The answers come in the order of the cases, with id, allocatable or count, and results: for each claim its devices,
    or that for each pod. A line that is no case is answered with id and error, and the exit status is then 1.
    """
    agreement = AllocatorAgreement()
    # One for all cases: compiled CEL expressions are kept, and cases repeat them.
    selectors = Selectors()

    def answer_case(case: ClaimsCase) -> ClaimsAnswer:
        pods, failed = _allocations(case, selectors)
        agreement.add(case, pods)
        results = tuple(_show_devices(pod) for pod in pods)
        counted = case.form.limit is not None
        mappings = tuple(
            MappingAnswer(container_name=one.container, request_name=one.request, resource_name=one.resource)
            for one in case.extended.mappings
        )
        return ClaimsAnswer(
            id=case.form.id,
            results=results if counted else (results[0] if results else ()),
            allocatable=msgspec.UNSET if counted else bool(results),
            count=len(results) if counted else msgspec.UNSET,
            reason=msgspec.UNSET if failed is None else str(failed.outcome),
            message=msgspec.UNSET if failed is None else failed.message,
            request_mappings=mappings or msgspec.UNSET,
        )

    table = agreement.agreement_table if compare else None
    answer_cases(file, decode_claims, answer_case, output, HEADINGS, _row, done_word="allocated", compared=table)


def _allocations(case: ClaimsCase, selectors: Selectors) -> tuple[tuple[Allocation, ...], Allocation | None]:
    """What each pod gets, and why there are no more of them."""
    if case.extended.missing:
        message = f"the node lacks {case.extended.missing}, which no class stands for"
        return (), Allocation(Outcome.UNALLOCATABLE, message=message)
    # A budget of work a case: one that would search for hours is given up, and the next one begins afresh.
    budget = Budget()
    prepared = prepare(case.hardware, case.claims, RequestContext(case.classes, selectors, budget))
    if case.form.limit is not None:
        counted = count(prepared, case.in_use, case.form.limit, budget)
        return counted.pods, counted.failed
    allocation = allocate(prepared, case.in_use, budget)
    return ((allocation,), None) if allocation.allocated else ((), allocation)


def _show_devices(allocation: Allocation) -> Devices:
    return tuple(
        tuple(
            DeviceAnswer(
                request=given.request,
                driver=given.device[0],
                pool=given.device[1],
                device=given.device[2],
                consumed_capacity={name: str(amount) for name, amount in (given.consumed or {}).items()},
                admin_access=given.admin,
            )
            for given in claim
        )
        for claim in allocation.claims
    )


def _row(given: ClaimsAnswer) -> tuple[Cell, ...]:
    why = "" if given.reason is msgspec.UNSET else f"{given.reason}: {given.message}"
    if given.count is not msgspec.UNSET:
        return given.id, Text(str(given.count), "green" if given.count else "yellow"), why
    if not given.allocatable:
        return given.id, Text("no", "yellow"), why
    claims: Any = given.results
    return (
        given.id,
        Text("yes", "green"),
        "\n".join(f"{one.request}: {one.pool}/{one.device}" for claim in claims for one in claim),
    )
