"""A filter of kube-scheduler that Topogate does not know: it refuses some nodes to some pods, and changes its mind."""

import random

from support.history.server import Json

SHARE = 1 / 2  # of the nodes, for most shapes of pods


class HiddenFilter:
    """In half of the histories. It has dice of its own, and what it refuses follows from its ``round`` alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.round = 0
        self.on = random.Random(f"filter {seed}").random() < 0.5

    def takes(self, pod: Json, node: str) -> bool:
        """Whether a pod may go to a node. Pods of one namespace that ask for the same are refused alike."""
        if not self.on:
            return True
        cpu = [one.get("resources", {}).get("requests", {}).get("cpu", 0) for one in pod["spec"]["containers"]]
        shape = f"{self.seed} {self.round} {pod['metadata']['namespace']} {cpu}"
        if random.Random(f"shape {shape}").random() > 0.7:
            return True
        return random.Random(f"node {shape} {node}").random() > SHARE

    def change_mind(self) -> None:
        """It refuses others from now on."""
        self.round += 1

    def open(self) -> None:
        """It refuses nobody any more."""
        self.on = False
