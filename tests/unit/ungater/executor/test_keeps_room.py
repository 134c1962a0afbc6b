"""Pods that wait for their turn at a node, and gated pods of nobody: what becomes of room that is kept for them."""

import msgspec
import pytest
from support.owned import make_job, make_pod
from support.queued_world import filled
from support.world import World

from clock import SYSTEM
from crds.settings import Settings
from ungater import kinds
from ungater.assembly import assemble
from ungater.controller import Controller
from ungater.metrics import ControllerMetrics
from ungater.model.actions import Ungate
from ungater.model.held_pods import HeldPod
from ungater.model.job_view import id_of

replace = msgspec.structs.replace


class Turn:
    """A Job with a slot on one host; ``may_go``: whether its pod may go there now."""

    def __init__(self, *, nominates, may_go):
        world = filled(World())
        job = make_job("train", parallelism=1)
        world.put("job", job)
        world.admit(job)
        before = world.memory.entries[id_of(job)]
        self.pod = make_pod("a", owner=before.job)
        world.put("pod", self.pod)
        settings = Settings(nominate_gated_pods=nominates)
        self.controller = Controller(
            assemble(settings, None, ControllerMetrics(), None, SYSTEM, restart=print),
            None,
            ControllerMetrics(),
            SYSTEM,
        )
        stores = (world.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
        for _ in self.controller.parts.cache.load(*stores):
            pass
        self.entry = self.controller.parts.cache.entries[id_of(job)]
        self.controller.parts.cache.admissions.hold_admission(self.entry, before.admission)
        held = None if may_go else HeldPod(before.slots.slots[0].node, before.job.pod_sets[0].shape, 0.0)
        self.controller.parts.cache.in_flight.judge_pod = lambda *_: held
        self.node = self.entry.slots.slots[0].node

    def ungate(self):
        self.controller.parts.executor.ungate(self.entry, Ungate(self.pod, 0), None)


def test_room_is_kept_for_a_pod_that_waits_for_its_turn_at_its_node():
    turn = Turn(nominates=True, may_go=False)
    turn.ungate()
    assert (turn.entry.nominated["uid-a"].node, turn.entry.expectations) == (turn.node, {})
    turn.ungate()
    assert turn.entry.nominated["uid-a"].attempts == 1, "it is on its way, and not sent at every look"


@pytest.mark.parametrize(("nominates", "may_go"), [(True, True), (False, False)])
def test_none_is_kept_for_one_that_goes_at_once_nor_where_nobody_asked_for_it(nominates, may_go):
    turn = Turn(nominates=nominates, may_go=may_go)
    turn.ungate()
    assert turn.entry.nominated == {}
    assert ("uid-a" in turn.entry.expectations) == may_go


@pytest.mark.parametrize(("node", "owned", "removed"), [("n1", False, True), ("", False, False), ("n1", True, False)])
def test_no_room_is_kept_for_a_gated_pod_of_nobody(node, owned, removed):
    """Of a workload that is known each look says what is kept."""
    turn = Turn(nominates=True, may_go=False)
    pod = replace(turn.pod, status=replace(turn.pod.status, nominated_node_name=node))
    if not owned:
        pod = replace(pod, metadata=replace(pod.metadata, owner_references=()))
    turn.controller.parts.informers.of(kinds.PODS)._store.update({"ns/a": pod})
    sweep = turn.controller.parts.sweeper._remove_nominations
    sweep()
    assert turn.controller.parts.pod_writer.quiet(0.0) == (not removed)
