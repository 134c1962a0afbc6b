"""A board from files: what ``topogate snapshot`` and ``kubectl get -o yaml`` write."""

from collections.abc import Iterable, Sequence

from cli.cluster.dump import Dump, FoundObject
from cli.output import Failure
from clock import Clock
from crds.constants import GROUP
from crds.settings import Settings
from kube import objects
from kube.topologies import FlexTopo
from kube.workloads import WholeWorkload
from ungater import kinds
from ungater.numa.sources import DescribedMachine, describe
from web import facts
from web.board import Board
from web.live import BoardFeed


class ClusterSnapshot:
    """A cluster as it was. Raises Failure where an object cannot be read, or there is no node.

    ``taken``: when, in seconds since the epoch; 0: nobody knows, as of files.
    """

    def __init__(self, found: Iterable[FoundObject], settings: Settings, source: str, taken: float = 0.0) -> None:
        self.dump = Dump()
        self.source = source
        self._taken = taken
        self.workloads: list[WholeWorkload] = []
        for one in found:
            self.dump.add(one)
            if (one.api_group, one.kind) == (GROUP, "Workload"):
                # A second reading, with templates: the controller's own form leaves them out, and the page tells what
                # was asked for.
                self.workloads.append(one.read(WholeWorkload))
        if not self.dump.of(kinds.NODES):
            raise Failure(f"{source}: there is no Node, so there is nothing to show")
        self._nodes = self.dump.by_key(kinds.NODES)
        self.board = Board(facts.main_resource(self.dump.of(kinds.NODES)))
        templates = {objects.key(one): one for one in self.workloads}
        BoardFeed(self.board, settings.keys, templates.get).take_all(self.dump.by_key)

    @property
    def taken(self) -> float:
        """When it was taken, in seconds since the epoch; of files the newest moment that they tell of, 0 for none."""
        if self._taken:
            return self._taken
        moments = [one.created for one in self.board.holders.values()]
        moments += [step.at for one in self.board.holders.values() for step in one.steps]
        return max(moments, default=0.0)

    def clock(self, clock: Clock) -> Clock:
        """A clock that stands still when it was taken."""
        taken = self.taken
        # Ages count from then; by today's clock every job of an old snapshot would have waited for weeks.
        return Clock((lambda: taken) if taken else clock.now, clock.monotonic)

    def inside_of_host(self, name: str) -> tuple[DescribedMachine | None, FlexTopo | None]:
        """What is known of the inside of a host."""
        if name not in self._nodes:
            return None, None
        flex = self.dump.by_key(kinds.FLEX_TOPOS).get(name)
        topology = self.dump.by_key(kinds.NODE_TOPOLOGIES).get(name)
        return describe(self._nodes[name], topology=topology, flex=flex), flex

    def reading(self) -> tuple[Dump, Sequence[WholeWorkload]]:
        """What questions are answered from."""
        return self.dump, self.workloads
