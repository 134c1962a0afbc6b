"""Pods that are let go to one node, and are on their way there."""

from ungater.model.pod_slots import Expectation

NODE = "r1-h1"
HERE = ("b", "r1", NODE)


def may_go(in_flight, record, pod, node):
    """Whether a pod may go to a node now; where not, it waits."""
    held = in_flight.judge_pod(record, pod, node)
    if held is not None:
        in_flight.hold_pod(record, pod.metadata.uid, held)
    return held is None


class OnTheirWay:
    """Of a `support.world.World`: its pods with a slot on the node, (entry, pod) each. ``now``: in seconds."""

    def may_go(self, one, node=NODE):
        """Whether it may go now; where not, it waits."""
        return may_go(self.memory.in_flight, *one, node)

    def go(self, one):
        """Let it go, as the controller does."""
        record, pod = one
        assert self.may_go(one)
        self.memory.in_flight.record_sent(record, pod, NODE)
        record.expectations[pod.metadata.uid] = Expectation(HERE, self.now + 60)
