"""What a sweep of the controller counts: what jobs hold, in a queue or without one, by the labels of their pods."""

import pytest
from support.owned import make_job
from support.queued_world import filled
from support.world import World

from clock import Clock
from crds.settings import Settings
from ungater.assembly import assemble
from ungater.controller import Controller
from ungater.metrics import ControllerMetrics
from ungater.model.job_view import id_of


class Sweep:
    """A Job that was admitted without a queue, and the sweep that tells of queues."""

    def __init__(self, **settings):
        world = filled(World())
        job = make_job("train", parallelism=2, pod_labels={"team": "vision"})
        world.put("job", job)
        world.admit(job)
        self.time, self.metrics = 100.0, ControllerMetrics()
        clock = Clock(lambda: self.time, lambda: self.time)
        controller = Controller(
            assemble(Settings(**settings), None, self.metrics, None, clock, restart=print), None, self.metrics, clock
        )
        stores = (world.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
        for _ in controller.parts.cache.load(*stores):
            pass
        entry = controller.parts.cache.entries[id_of(job)]
        controller.parts.cache.admissions.hold_admission(entry, world.memory.entries[id_of(job)].admission)
        self._sweep = controller.parts.sweeper._tell_queues

    def seconds(self, name):
        """By labels of the series, what was counted in ten seconds."""
        self._sweep()
        self.time += 10.0
        self._sweep()
        every = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        found = (one for one in every if one.name == f"topogate_{name}_resource_seconds_total")
        return {tuple(one.labels.values()): one.value for one in found if one.labels["resource"] == "cpu"}


@pytest.mark.parametrize(("label", "value"), [("team", "vision"), ("user", "")])
def test_what_a_job_without_a_queue_holds_is_counted_by_the_labels_of_its_pods(label, value):
    assert Sweep(usage_labels=(label,)).seconds("label") == {(label, value, "", "ns", "gpu", "cpu"): 2 * 10}


def test_what_a_job_without_a_queue_holds_is_counted_under_empty_names():
    assert Sweep().seconds("local_queue") == {("", "ns", "", "gpu", "cpu"): 2 * 10}
