"""The file that ``topogate whatif preempt`` reads: servers, classes, preemptors, and clusters of running instances.

The form is described in docs/preemption.md. One file is one document; a cluster that contradicts itself becomes an
error that names it, and does not stop those after it.
"""

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import msgspec

from cli.output import Failure
from cli.whatif.forms import KubeletForm, Whole
from cli.whatif.machines import kubelet_of
from engine import quantity
from engine.kubelet.machine import TopologyPolicy
from engine.preemption.model import NodeRoom, Preemptor, TopologyQos
from simulator.servers import KUBELET, Instance, InstanceClass, Server, preemptor_of, room_of

Some = Annotated[int, msgspec.Meta(ge=1)]


class DistancesForm(msgspec.Struct, frozen=True):
    """SLIT distances."""

    same: Some = 10
    same_socket: Some = 12
    cross_socket: Some = 32


class ServerForm(msgspec.Struct, frozen=True, kw_only=True):
    """Every node is one of these. ``numa_cores``: first and last CPU of each zone."""

    count: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    numa_cores: tuple[tuple[Whole, Whole], ...]
    numa_to_socket: tuple[Whole, ...]
    gpu_to_numa: tuple[Whole, ...]
    numa_distance: DistancesForm = DistancesForm()
    allocatable: dict[str, int | float | str] = {}


class ClassForm(msgspec.Struct, frozen=True):
    """What instances of a class take, in GPUs and whole CPUs."""

    priority: int
    gpus: Some
    cpu: Whole
    preemptible: bool = True


class PreemptorForm(msgspec.Struct, frozen=True):
    """One more pod that wants in; ``numa_policy``: its own wish, which ``guaranteed`` insists on."""

    priority: int
    gpus: Some
    cpu: Whole
    qos: TopologyQos = TopologyQos.GUARANTEED
    numa_policy: TopologyPolicy = TopologyPolicy.SOCKET


class InstanceForm(msgspec.Struct, frozen=True, array_like=True):
    """A running instance: [id, name, node, class, start_s, gpu_ids]."""

    id: str
    name: str
    node: Whole
    of: str
    start_s: float
    gpu_ids: tuple[Whole, ...]


class FactsForm(msgspec.Struct, frozen=True):
    """What is known of the best answer, to compare with."""

    best_lex_max_sum_count: tuple[int, int, int]
    cluster_min_victims: int
    nodes_at_best_lex: tuple[int, ...] = ()


class ClusterForm(msgspec.Struct, frozen=True):
    """One cluster."""

    cycle: int
    instances: tuple[InstanceForm, ...]
    facts: dict[str, FactsForm] = {}


class FileForm(msgspec.Struct, frozen=True):
    """The whole document; other keys are passed over."""

    node: ServerForm
    classes: dict[str, ClassForm]
    preemptors: dict[str, PreemptorForm]
    variants: dict[str, tuple[ClusterForm, ...]]
    kubelet: KubeletForm | None = None


class CaseRequest(msgspec.Struct, frozen=True):
    """A preemptor by name, with what is known of the best answer; ``wish``: what it asks of a kubelet itself."""

    name: str
    of: InstanceClass
    wish: TopologyPolicy
    preemptor: Preemptor
    facts: FactsForm | None


class CaseCluster(msgspec.Struct, frozen=True):
    """One cluster in the engine's words; a room is named by the number of its node."""

    variant: str
    cycle: int
    server: Server
    rooms: tuple[NodeRoom, ...]
    instances: dict[str, tuple[Instance, ...]]  # by node, as they started
    asked: tuple[CaseRequest, ...]


class ClusterError(Exception):
    """A cluster that contradicts itself."""

    def __init__(self, variant: str, cycle: int, message: str) -> None:
        self.id = f"{variant}/{cycle}"
        super().__init__(f"variant {variant}, cycle {cycle}: {message}")


def read_file(stream: BinaryIO) -> FileForm:
    """The document.

    Raises:
        Failure: it is none, with the field and what was expected there.
    """
    try:
        return msgspec.json.decode(stream.read(), type=FileForm)
    except msgspec.DecodeError as error:
        raise Failure(f"not a preemption scenario: {error}; docs/preemption.md describes the form") from error
    except (OSError, EOFError, zlib.error) as error:
        raise Failure(f"cannot read the file: {error}") from error


def clusters(form: FileForm) -> Iterator[CaseCluster | ClusterError]:
    """Every cluster of a document, in its order."""
    server = _server(form)
    classes = {
        name: InstanceClass(priority=one.priority, gpus=one.gpus, cpu=one.cpu, preemptible=one.preemptible)
        for name, one in form.classes.items()
    }
    for variant, found in form.variants.items():
        for cluster in found:
            try:
                yield _cluster(form, server, classes, variant, cluster)
            except ValueError as error:
                yield ClusterError(variant, cluster.cycle, str(error))


def _server(form: FileForm) -> Server:
    node = form.node
    zones = len(node.numa_cores)
    if len(node.numa_to_socket) != zones:
        raise Failure(f"node.numa_to_socket: {len(node.numa_to_socket)} entries for {zones} zones in numa_cores")
    wrong = [zone for zone in node.gpu_to_numa if zone >= zones]
    if wrong:
        raise Failure(f"node.gpu_to_numa: zone {wrong[0]} is not one of the {zones} in numa_cores")
    try:
        amounts = {name: _amount(name, value) for name, value in node.allocatable.items()}
        kubelet = KUBELET if form.kubelet is None else kubelet_of(form.kubelet)
    except ValueError as error:
        raise Failure(f"node: {error}") from error
    distance = node.numa_distance
    return Server(
        cores=tuple(range(first, last + 1) for first, last in node.numa_cores),
        socket_of=node.numa_to_socket,
        zone_of=node.gpu_to_numa,
        distances=(distance.same, distance.same_socket, distance.cross_socket),
        allocatable=amounts,
        kubelet=kubelet,
    )


def _amount(name: str, value: float | str) -> int:
    try:
        return quantity.bounded(quantity.parse(name, value))
    except ValueError as error:
        raise ValueError(f"allocatable.{name}: {error}") from error


def _cluster(
    form: FileForm, server: Server, classes: dict[str, InstanceClass], variant: str, cluster: ClusterForm
) -> CaseCluster:
    by_node: dict[int, list[Instance]] = {}
    # As they started: a kubelet gives out CPUs in that order, and the replay has to end in the same state.
    for one in sorted(cluster.instances, key=lambda each: each.start_s):
        if one.of not in classes:
            raise ValueError(f"instance {one.id}: class {one.of} is none of {', '.join(sorted(classes))}")
        if one.node >= form.node.count:
            raise ValueError(f"instance {one.id}: node {one.node} is not one of the {form.node.count} (from 0)")
        by_node.setdefault(one.node, []).append(Instance(one.id, one.node, classes[one.of], one.gpu_ids, one.start_s))
    twice = [name for name, count in Counter(one.id for one in cluster.instances).items() if count > 1]
    if twice:
        raise ValueError(f"instance {twice[0]} is there twice")
    # Of one width, so that the order of names is that of the numbers: ties go by name.
    names = [f"{number:06d}" for number in range(form.node.count)]
    return CaseCluster(
        variant=variant,
        cycle=cluster.cycle,
        server=server,
        rooms=tuple(room_of(server, name, by_node.get(number, ())) for number, name in enumerate(names)),
        instances={name: tuple(by_node.get(number, ())) for number, name in enumerate(names)},
        asked=tuple(_case_request(name, one, cluster.facts.get(name)) for name, one in form.preemptors.items()),
    )


def _case_request(name: str, form: PreemptorForm, facts: FactsForm | None) -> CaseRequest:
    of = InstanceClass(priority=form.priority, gpus=form.gpus, cpu=form.cpu)
    wish = form.numa_policy if form.qos is TopologyQos.GUARANTEED else TopologyPolicy.NONE
    return CaseRequest(name, of, wish, preemptor_of(of, form.qos, form.numa_policy), facts)
