"""Writes each pod's observed placement as an annotation, only where it differs from what the pod has.

One pod that cannot be written keeps no other from being written. A pod that finished keeps what it had; a pod of a
static manifest has none, for its mirror is the kubelet's.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from agent.metrics import AgentMetrics
from agent.pods import MIRROR, NodePod, pod
from agent.publish import MANAGER
from crds.constants import NUMA_PLACEMENT_OBSERVED
from crds.numa_placement import encode
from engine.kubelet.machine import NumaPlacement
from kube.client import Client
from kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from kube.patches import guard
from kube.resources import PODS

CONCURRENCY = 4
SEEN_SECONDS = 10.0  # by then the watch has shown our own write
log = structlog.get_logger()


class Observer:
    """Remembers what it wrote until the watch has shown it. ``clock`` is monotonic."""

    def __init__(self, client: Client, metrics: AgentMetrics, clock: Callable[[], float]) -> None:
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._sent: dict[str, tuple[str | None, float]] = {}

    async def write(self, pods: Iterable[NodePod], placements: Mapping[str, NumaPlacement], *, exact: bool) -> None:
        """Bring the pods' annotations to these placements (by the kubelet's uid).

        ``exact``: whether a pod without placement is known to hold nothing; then an annotation that it has goes.
        Raises KubeError where the API server does not answer; what one pod is refused is logged.
        """
        living = {wire.metadata.uid: wire for wire in pods if not pod(wire).finished}
        self._sent = {uid: sent for uid, sent in self._sent.items() if uid in living}
        wanted = list(self._changes(living.values(), placements, exact))
        limit = asyncio.Semaphore(CONCURRENCY)

        async def one(wire: NodePod, text: str | None) -> None:
            async with limit:
                await self._patch(wire, text)

        # All are tried before an error is raised, or the first pod that fails would hold up the rest in each round.
        answers = await asyncio.gather(*(one(wire, text) for wire, text in wanted), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _changes(
        self, pods: Iterable[NodePod], placements: Mapping[str, NumaPlacement], exact: bool
    ) -> Iterator[tuple[NodePod, str | None]]:
        now = self._clock()
        for wire in pods:
            annotations = wire.metadata.annotations or {}
            placement = placements.get(wire.metadata.uid)
            text = encode(placement) if placement else None
            sent, at = self._sent.get(wire.metadata.uid, (None, -SEEN_SECONDS))
            if (
                MIRROR in annotations
                or annotations.get(NUMA_PLACEMENT_OBSERVED) == text
                or (text is None and not exact)
            ):
                continue
            # The watch may not have shown our own write yet: the same text waits for it, another one does not.
            if sent != text or now - at >= SEEN_SECONDS:
                yield wire, text

    async def _patch(self, wire: NodePod, text: str | None) -> None:
        metadata = wire.metadata
        # By uid: a pod that was made again under this name has its own placement.
        body = guard({"metadata": {"annotations": {NUMA_PLACEMENT_OBSERVED: text}}}, uid=metadata.uid)
        try:
            await self._client.patch(PODS, metadata.name, metadata.namespace, body=body, field_manager=MANAGER)
        except (NotFound, Conflict):
            outcome = "gone"
        except (Forbidden, Invalid) as error:
            outcome = "refused"
            log.warning("observed placement refused", pod=f"{metadata.namespace}/{metadata.name}", error=str(error))
        except KubeError:
            self._metrics.writes.labels("pod", "failed").inc()
            raise
        else:
            outcome = "written"
        self._sent[metadata.uid] = (text, self._clock())
        self._metrics.writes.labels("pod", outcome).inc()
