"""What Kueue has decided about jobs, and how everything else therefore looks at them."""

from collections.abc import Mapping

from engine.model import Node
from ungater.kueue import decide
from ungater.kueue.decide import KueueStanding
from ungater.model.job_view import JobView
from ungater.model.workload_entry import WorkloadEntry


class KueueStandings:
    """``of_job``: by the id of a job; ``workloads``: the keys of Kueue's Workloads, by the id of their owner."""

    def __init__(self) -> None:
        self.of_job: dict[str, KueueStanding] = {}
        self.workloads: dict[str, set[str]] = {}

    def view_of_job(self, own: JobView, entry: WorkloadEntry | None, nodes: Mapping[str, Node]) -> JobView:
        """The job as it is to be looked at. ``entry``: what is known of it, if anything is."""
        stands = self.of_job.get(own.id)
        seen = decide.view(own, stands, self.workloads.get(own.id, ()))
        if stands is not None and own.suspended and not seen.suspended and strayed(entry, stands, nodes):
            return own  # slots of an earlier reservation are given back first
        return seen


def strayed(entry: WorkloadEntry | None, stands: KueueStanding, nodes: Mapping[str, Node]) -> bool:
    """Whether a job has slots outside of what Kueue assigned to it."""
    if entry is None or entry.slots is None or stands.restriction is None:
        return False

    def labels_of(name: str) -> dict[str, str] | None:
        node = nodes.get(name)
        return node.labels if node is not None else None

    return decide.strayed(entry.slots, stands.restriction, labels_of)
