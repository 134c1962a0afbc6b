"""Who is told what is found out about nodes' insides and the pods there."""

from typing import Protocol

from ungater.model.workload_entry import PlacementMismatch, WorkloadEntry
from ungater.numa.sources import DescribedMachine


class Notices(Protocol):
    """Somebody to tell."""

    def machine(self, name: str, before: DescribedMachine, now: DescribedMachine) -> None:
        """What is wrong with what a node publishes changed."""

    def mismatch(self, entry: WorkloadEntry, mismatch: PlacementMismatch) -> None:
        """A kubelet did otherwise than was predicted for a pod of a job."""

    def unscheduled(self, entry: WorkloadEntry, count: int, words: str) -> None:
        """kube-scheduler refused so many pods of a job at their slots for longer than it is waited for."""

    def node_left_out(self, name: str, words: str, seconds: float) -> None:
        """Pods of several workloads did not run on a node: no pod goes there for so long."""


class Silent:
    """Tells nobody: for commands that look at a cluster once."""

    def machine(self, name: str, before: DescribedMachine, now: DescribedMachine) -> None:
        """See `Notices`."""

    def mismatch(self, entry: WorkloadEntry, mismatch: PlacementMismatch) -> None:
        """See `Notices`."""

    def unscheduled(self, entry: WorkloadEntry, count: int, words: str) -> None:
        """See `Notices`."""

    def node_left_out(self, name: str, words: str, seconds: float) -> None:
        """See `Notices`."""
