"""What one viewer may see: those who may see the same share one picture."""

import msgspec


class Sight(msgspec.Struct, frozen=True):
    """What there is to see for a viewer.

    ``hosts``: nodes, and how much of each is used. ``queues``: all cluster queues. ``namespaces``: whose workloads and
    pods may be named; None: of all. What others hold counts without a name.
    """

    hosts: bool = False
    queues: bool = False
    namespaces: frozenset[str] | None = frozenset()

    @property
    def whole(self) -> bool:
        """Whether everything may be seen."""
        return self.hosts and self.queues and self.namespaces is None

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to see."""
        return not (self.hosts or self.queues or self.namespaces is None or self.namespaces)

    def may_name(self, namespace: str) -> bool:
        """Whether what is in this namespace may be named."""
        return self.namespaces is None or namespace in self.namespaces


EVERYTHING = Sight(hosts=True, queues=True, namespaces=None)
