"""The cases that ``topogate whatif place`` reads: one JSON object a line, decoded strictly and put before the engine.

The form is described in docs/whatif.md. Whatever is wrong with a line becomes a ``CaseError`` that names the line, the
case and the field; a wrong line never stops the lines after it.
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar

import msgspec

from cli.output import Failure
from engine import quantity
from engine.cluster.state import ClusterState
from engine.kubelet.devices.xpu import RESOURCE
from engine.kubelet.machine import Container, PodShape, Qos
from engine.model import (
    HOSTNAME_LABEL,
    PODS,
    Amounts,
    Flavor,
    Node,
    Pod,
    PodSet,
    Policy,
    Taint,
    Toleration,
    TopologyRequest,
)
from engine.placement.place import place
from engine.results import Placement, Refusal, WorkloadRequest
from kube.type_words import in_words

MAX_LEVELS = 8
FLAVOR = "default"

MOST = 1 << 53  # 8 PiB; more of anything is a slip, and the engine adds up in 64 bits

Read = TypeVar("Read")
Quantities = dict[str, int | float | str]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class CaseError(Exception):
    """A line that is no case. ``id`` is the case's where it could be read."""

    def __init__(self, line: int, case_id: str | None, message: str) -> None:
        self.id = case_id
        where = f"line {line}" if case_id is None else f"line {line}, case {case_id!r}"
        super().__init__(f"{where}: {message}")


class LevelMode(StrEnum):
    """How strictly the pods ask for their level."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    UNCONSTRAINED = "unconstrained"


class _Form(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class NodeForm(_Form, frozen=True):
    """One node; quantities are integers (milli-CPU, bytes, units) or Kubernetes quantities as strings."""

    name: Name
    labels: dict[str, str]
    allocatable: Quantities
    used: Quantities = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


class PodSetForm(_Form, frozen=True):
    """The pods to place: ``count`` of them, each taking ``per_pod`` and one of ``pods``."""

    mode: LevelMode
    count: Annotated[int, msgspec.Meta(ge=1)]
    per_pod: Quantities
    level: str | None = None
    name: Name = "main"
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    group: str = ""


class PodSetsForm(_Form, frozen=True):
    """A request of several pod sets, which are placed together or not at all."""

    pod_sets: Annotated[tuple[PodSetForm, ...], msgspec.Meta(min_length=1)]


class CaseSlice(_Form, frozen=True):
    """Pods in one domain: its value at every level (another scheduler may name the host alone)."""

    values: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    count: Annotated[int, msgspec.Meta(ge=1)]


class CaseForm(_Form, frozen=True):
    """One line. ``fits`` and ``slices`` are another scheduler's answer, to compare with."""

    id: str
    levels: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MAX_LEVELS)]
    nodes: tuple[NodeForm, ...]
    request: msgspec.Raw
    fits: bool | None = None
    slices: tuple[CaseSlice, ...] = ()


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A valid case in the engine's words."""

    id: str
    levels: tuple[str, ...]
    nodes: tuple[Node, ...]
    used: dict[str, Amounts]  # by node name
    pod_sets: tuple[PodSet, ...]
    peer_fits: bool | None = None
    peer_slices: tuple[CaseSlice, ...] = ()


class _Identity(msgspec.Struct):
    id: str


_IDENTITY = re.compile(rb'"id"\s*:\s*"([^"\\]+)"')
_cases = msgspec.json.Decoder(CaseForm)
_identities = msgspec.json.Decoder(_Identity)


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """Open a file, or stdin for ``-``, unpacking gzip by its magic bytes.

    Raises:
        Failure: the file cannot be read.
    """
    if file == "-":
        yield _unpacked(io.BufferedReader(sys.stdin.buffer))  # type: ignore[arg-type]
        return
    if file.startswith(("http://", "https://")):
        raise Failure(f"{file} is a URL, and a file is read here: pipe it, as in `curl -sL {file} | topogate ... -f -`")
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - closed below; only failing to open is told here
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}") from error
    with stream:
        yield _unpacked(stream)


def _unpacked(stream: io.BufferedReader) -> BinaryIO:
    # By the content: a name may lack .gz, and stdin has none.
    if stream.peek(2)[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    return stream


def read_lines(stream: BinaryIO, decode: Callable[[bytes], Read]) -> Iterator[Read | CaseError]:
    """Every case or error, in the order of the lines; empty lines are passed over.

    ``decode`` raises ValueError where a line is no case. Raises Failure where the stream breaks off (a damaged gzip).
    """
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _case_or_error(number, line, decode)
    except (OSError, EOFError, zlib.error) as error:
        raise Failure(f"the input breaks off after line {number}: {error}") from error


def _case_or_error(number: int, line: bytes, decode: Callable[[bytes], Read]) -> Read | CaseError:
    try:
        return decode(line)
    except (msgspec.DecodeError, ValueError) as error:
        return CaseError(number, _identity(line), _hint(str(error)))
    except RecursionError:
        return CaseError(number, _identity(line), "objects are nested too deep")


def _identity(line: bytes) -> str | None:
    try:
        return _identities.decode(line).id
    except (msgspec.DecodeError, ValueError, RecursionError):
        found = _IDENTITY.search(line)  # it cannot be read; its id may stand there all the same
        return None if found is None else found[1].decode(errors="replace")


def _hint(message: str) -> str:
    message = in_words(message)
    if "Invalid enum value" in message and ".mode`" in message:
        return f"{message}; expected {', '.join(LevelMode)}"
    if "truncated" in message:
        return f"{message}; one case is one line (`jq -c . FILE` makes it so)"
    return message


def decode_case(line: bytes) -> Case:
    """Read one case.

    Raises:
        ValueError: (msgspec's errors are ones) with the field and what was expected there.
    """
    form = _cases.decode(line)
    _check_unique("levels", form.levels)
    if HOSTNAME_LABEL in form.levels[:-1]:
        raise ValueError(f"levels: {HOSTNAME_LABEL} can only be the last level")
    _check_unique("nodes", [node.name for node in form.nodes])
    # The request is one pod set, or an object with ``podSets``.
    try:
        fields = msgspec.json.decode(form.request, type=dict[str, msgspec.Raw])
        if "podSets" in fields:
            requests = msgspec.json.decode(form.request, type=PodSetsForm).pod_sets
        else:
            requests = (msgspec.json.decode(form.request, type=PodSetForm),)
    except msgspec.ValidationError as error:
        message = str(error)
        if "`$" in message:
            # The part was decoded by itself, so its paths begin at its own root.
            raise ValueError(message.replace("`$", "`$.request", 1)) from error
        raise ValueError(f"{message} - at `$.request`") from error
    _check_unique("request.podSets", [request.name for request in requests])
    return Case(
        id=form.id,
        levels=form.levels,
        nodes=tuple(
            Node(
                name=node.name,
                labels=node.labels,
                allocatable=_amounts(node.allocatable, f"nodes[{index}].allocatable"),
                taints=node.taints,
                unschedulable=node.unschedulable,
                ready=node.ready,
            )
            for index, node in enumerate(form.nodes)
        ),
        used={node.name: _amounts(node.used, f"nodes[{index}].used") for index, node in enumerate(form.nodes)},
        pod_sets=tuple(_pod_set(request, form.levels) for request in requests),
        peer_fits=form.fits,
        peer_slices=form.slices,
    )


def _check_unique(field: str, names: list[str] | tuple[str, ...]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise ValueError(f"{field}: {repeated[0]!r} is there more than once")


def _amounts(quantities: Quantities, field: str) -> Amounts:
    """Integers are the engine's units already; strings are Kubernetes quantities."""
    amounts: Amounts = {}
    for resource, value in quantities.items():
        at = f"{field}[{resource!r}]"
        # 1.5 could mean milli-CPUs or CPUs: as text it is a quantity, as a number an integer of units.
        if isinstance(value, float):
            raise ValueError(f"{at}: expected an integer or a quantity in quotes, got {value}")  # noqa: TRY004
        try:
            amounts[resource] = quantity.parse(resource, value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"{at}: {error}") from error
        if not 0 <= amounts[resource] <= MOST:
            raise ValueError(f"{at}: expected 0 to {MOST}, got {value}")
    return amounts


def _pod_set(form: PodSetForm, levels: tuple[str, ...]) -> PodSet:
    field = "request" if form.name == "main" else f"request.podSets[{form.name!r}]"
    if PODS in form.per_pod:
        raise ValueError(f"{field}.perPod: leave {PODS} out, every pod takes one")
    requests = _amounts(form.per_pod, f"{field}.perPod")
    # A pod with one container where it asks for XPUs, for their rules hold for each; None otherwise.
    if RESOURCE not in requests:
        shape = None
    else:
        shape = PodShape(
            containers=(Container(name="main", limits=tuple(sorted(requests.items()))),), qos=Qos.BURSTABLE
        )
    if form.mode is LevelMode.UNCONSTRAINED:
        if form.level is not None:
            raise ValueError(f"{field}.level: {form.mode} has no level, but it is {form.level!r}")
        topology = TopologyRequest(policy=Policy.UNCONSTRAINED)
    else:
        level = levels[-1] if form.mode is LevelMode.PREFERRED and form.level == "auto" else form.level
        if level not in levels:
            given = "is missing, expected one of" if level is None else f"{level!r} is none of"
            raise ValueError(f"{field}.level: {given} the levels {', '.join(levels)}")
        policy = Policy.REQUIRED if form.mode is LevelMode.REQUIRED else Policy.PREFERRED
        topology = TopologyRequest(policy=policy, level=level)
    return PodSet(
        name=form.name,
        count=form.count,
        requests=requests,
        shape=shape,
        topology=topology,
        node_selector=form.node_selector,
        tolerations=form.tolerations,
        group=form.group,
    )


def decide(case: Case, nodes_per_opened_domain: int = 0) -> Placement | Refusal:
    """Ask the engine about the described cluster."""
    state = ClusterState(nodes_per_opened_domain=nodes_per_opened_domain)
    state.set_flavor(Flavor(name=FLAVOR, levels=case.levels))
    for node in case.nodes:
        state.set_node(node)
        # All that is used counts as one pod, which takes as many of ``pods`` as it says and not the usual one.
        if case.used[node.name]:
            requests = {PODS: 0, **case.used[node.name]}
            state.set_pod(Pod(key=f"used/{node.name}", node=node.name, requests=requests))
    return place(state, WorkloadRequest(key=case.id, pod_sets=case.pod_sets))
