"""Pods that are let go to one node, and are on their way there."""

from ungater.model.pod_slots import Expectation

NODE = "r1-h1"
HERE = ("b", "r1", NODE)


class OnTheirWay:
    """Of a `support.world.World`: its pods with a slot on the node, (entry, pod) each. ``now``: in seconds."""

    def may_go(self, one):
        return self.memory.in_flight.may_go(*one, NODE)

    def go(self, one):
        """Let it go, as the controller does."""
        record, pod = one
        assert self.may_go(one)
        self.memory.in_flight.record_sent(record, pod, NODE)
        record.expectations[pod.metadata.uid] = Expectation(HERE, self.now + 60)
