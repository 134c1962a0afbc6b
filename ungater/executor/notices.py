"""Events, metrics and log lines about nodes' insides: data that is wrong, and kubelets that did otherwise."""

from collections.abc import Callable

import structlog

from engine.reasons import Reason
from kube.events import EventRecorder, reference
from kube.objects import Node
from kube.resources import NODES, PODS
from ungater.executor import messages
from ungater.metrics import ControllerMetrics
from ungater.model import conditions
from ungater.model.workload_entry import PlacementMismatch, WorkloadEntry
from ungater.numa.sources import DescribedMachine
from ungater.writers.events import FINE, emit

SAFER = "; until they agree the smaller amounts and the stricter policy count"

log = structlog.get_logger()


class NodeNotices:
    """What is told of nodes (`ungater.numa.notices`). ``node``: a node by its name."""

    def __init__(self, recorder: EventRecorder, metrics: ControllerMetrics, node: Callable[[str], Node | None]) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._node = node

    def machine(self, name: str, before: DescribedMachine, now: DescribedMachine) -> None:
        """What is wrong with what a node publishes changed: an event on the node."""
        node = self._node(name)
        regarding = reference(NODES, node) if node is not None else None
        news = (
            (Reason.MACHINE_DATA_DISAGREES, before.disagreements, now.disagreements, SAFER),
            (Reason.MACHINE_DATA_INVALID, before.problems, now.problems, ""),
        )
        for reason, old, new, then in news:
            # Told once for each change: a node's data is read again with every update of it.
            if new == old or regarding is None:
                continue
            text = conditions.shorten("; ".join(new) + then)
            if new:
                self._recorder.event(regarding, "Warning", reason, "Read", text)
                log.warning("machine data", node=name, reason=str(reason), message=text)
        if not now.problems and not now.disagreements and regarding is not None:
            message = messages.usable_again(now.source)
            self._recorder.event(regarding, FINE, Reason.MACHINE_DATA_VALID, "Read", message)

    def mismatch(self, entry: WorkloadEntry, mismatch: PlacementMismatch) -> None:
        """A kubelet did otherwise than predicted: an event on the pod and on its job."""
        if mismatch.refused:
            self._metrics.refusals.labels(mismatch.reason).inc()
        else:
            self._metrics.misaligned.inc()
        reason = Reason.KUBELET_REFUSED if mismatch.refused else Reason.MISALIGNED
        message = conditions.shorten(mismatch.message)
        if mismatch.refused:
            message = conditions.shorten(mismatch.message + messages.avoided(mismatch.node, mismatch.seconds))
        self._recorder.event(reference(PODS, mismatch.pod), "Warning", reason, "Place", message)
        emit(self._recorder, entry, "Warning", reason, "Place", message=message)
        if mismatch.unreported:
            self._metrics.unforeseen.inc()
            node = self._node(mismatch.node)
            if node is not None:
                text = messages.zones_unreported(mismatch.reason, ", ".join(mismatch.unreported))
                self._recorder.event(
                    reference(NODES, node), "Warning", Reason.ZONES_UNREPORTED, "Place", conditions.shorten(text)
                )
        log.warning("kubelet did otherwise", workload=entry.key, reason=str(reason), message=message)

    def unscheduled(self, entry: WorkloadEntry, count: int, words: str) -> None:
        """kube-scheduler refused pods: the job is told with what becomes of them (`ungater.reconcile.let_go`)."""
        self._metrics.unscheduled.inc(count)
        log.warning("kube-scheduler refuses", workload=entry.key, pods=count, message=words)

    def node_left_out(self, name: str, words: str, seconds: float) -> None:
        """A node is left out: an event on it, once for each time."""
        log.warning("node is left out", node=name, seconds=seconds, message=words)
        node = self._node(name)
        if node is not None:
            text = messages.left_out(seconds, words)
            self._recorder.event(
                reference(NODES, node), "Warning", Reason.NODE_LEFT_OUT, "Place", conditions.shorten(text)
            )
