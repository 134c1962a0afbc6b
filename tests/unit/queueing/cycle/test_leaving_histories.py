"""Random histories of gangs that end pod by pod: the first in the order keeps what it fits once they are gone."""

import os
import random

import pytest
from support.history.needless import judged_plans
from support.queue_factories import GPU, make_queue, make_queues, make_state, make_workload

from engine.model import Pod
from engine.reservation_key import Role, role_of
from engine.results import Refusal
from queueing.cycle.cycle import cycle
from queueing.cycle.elastic import reclaim
from queueing.model import Preemption, Reclaim, Rules, Within
from queueing.queues.entry import Phase
from queueing.queues.flavor_assigner import put
from queueing.queues.held import Held

SEEDS = int(os.environ.get("TOPOGATE_LEAVING_HISTORIES", "6"))
STEPS = 50
GPUS = 8  # of a node


class History:
    """Queues of one cohort on a few racks. Jobs come, end pod by pod, are deleted or evicted."""

    def __init__(self, seed, *, leaving=60.0):
        self.dice = random.Random(seed)
        racks, hosts = self.dice.randint(1, 3), self.dice.randint(2, 4)
        names = "abc"[: self.dice.randint(1, 3)]
        preemption = Preemption(within=Within.LOWER, reclaim=self.dice.choice(list(Reclaim)))
        nominal = max(GPUS, racks * hosts * GPUS // len(names))
        teams = [make_queue(name, nominal, cohort="all", preemption=preemption) for name in names]
        self.names, self.hosts = names, hosts
        self.state = make_state(racks, hosts)
        self.queues = make_queues(*teams, rules=Rules(patience=1e9, leaving=leaving))
        self.now, self.number = 1.0, 0
        self.orphans, self.running, self.going, self.ended = {}, {}, {}, {}
        self.victims = 0

    # -- what happens -------------------------------------------------------------------------------------------

    def step(self):
        self.now += self.dice.choice((0.5, 1.0, 3.0, 12.0))
        what = self.dice.choice(
            (self.comes, self.comes, self.comes, self.deleted, self.ends, self.ends, self.stops, self.stops)
        )
        what()

    def comes(self):
        self.number += 1
        count = self.dice.choice((1, 1, 1, 2, self.hosts))
        work = make_workload(
            f"w{self.number:03}",
            self.dice.choice(self.names),
            count,
            gpu=self.dice.choice((4, 8, 8)),
            priority=self.dice.choice((0, 0, 0, 5)),
            created=self.now,
        )
        self.queues.submit(work, self.now)

    def any(self, found):
        return self.dice.choice(sorted(found)) if found else None

    def deleted(self):
        """Its pods run on for a while, and nobody answers for them."""
        if (key := self.any(self.running.keys() - self.going.keys())) is None:
            return
        entry = self.queues.entries[key]
        pods, queue, ask = sorted(entry.pods), entry.queue, self.running.pop(key)
        self.ended.pop(key, None)
        self.queues.remove_workload(self.state, key)
        for pod in pods:
            held = self.state.pods[pod]
            self.state.set_pod(Pod(key=pod, node=held.node, requests=held.requests))
            self.queues.charge_pod(pod, Held(queue, {("tas", GPU): ask}))
            self.queues.leaving.pod_stops(pod)
            self.orphans[pod] = None

    def ends(self):
        """A pod is done; of one job after the other, mostly."""
        key = self.any(self.ended.keys() & self.running.keys() - self.going.keys())
        if key is None or self.dice.random() < 0.3:
            key = self.any(self.running.keys() - self.going.keys())
        if key is None:
            return
        pods = sorted(self.queues.entries[key].pods)
        self.state.remove_pod(pods[0])
        self.queues.unbind(pods[0])
        if len(pods) == 1:
            del self.running[key]
            self.ended.pop(key, None)
            self.queues.remove_workload(self.state, key)
            return
        self.ended[key] = self.ended.get(key, 0) + 1
        self.queues.leaving.pod_ended(key)
        reclaim(self.state, self.queues, key, {"main": self.ended[key]})

    def stops(self):
        """A pod that nobody answers for is gone, or the last of one that was told to go."""
        if self.going and self.dice.random() < 0.5:
            key = self.any(self.going)
            for pod in sorted(self.queues.entries[key].pods):
                self.state.remove_pod(pod)
                self.queues.unbind(pod)
            for table in (self.going, self.running, self.ended):
                table.pop(key, None)
            self.queues.release_and_requeue(self.state, key, self.now)
        elif (pod := self.any(self.orphans)) is not None:
            del self.orphans[pod]
            node = self.state.pods[pod].node
            self.queues.leaving.pod_gone(pod)
            self.queues.charge_pod(pod, None)
            self.state.remove_pod(pod)
            self.queues.pending.room_freed(self.state.flavors_on(node))

    # -- what is decided ----------------------------------------------------------------------------------------

    def first(self):
        """The first of those to be looked at that fits, now or once those are gone that leave; or none.

        None too where that one was given up once, or waited for as long as anybody may: nothing is kept for it.
        """
        self.queues.leaving.review_leaving(self.state, self.now)
        waiting = [
            entry for entry in self.queues.entries.values() if entry.phase is Phase.WAITING and self.is_next(entry)
        ]
        ranked = sorted((self.rank(entry), entry.workload.key) for entry in waiting)
        first, leaving = next((key for _, key in ranked if self.fits(key)), None), self.queues.leaving
        return None if first is not None and (first in leaving.spent or not leaving.may_follow(first)) else first

    def comes_before(self, other, key, ranks):
        """Also one that was nominated before, or came back meanwhile; between queues that are even turns decide."""
        if other not in ranks:
            return True
        same = self.queues.entries[other].queue == self.queues.entries[key].queue
        return ranks[other].order < ranks[key].order if same else ranks[other][:2] <= ranks[key][:2]

    def is_next(self, entry):
        """Whether it is looked at before anybody behind it: who is not the first of its queue has to wait for turns."""
        group = entry.group
        return entry.workload.key in self.queues.successors or (
            group.line.next() is group and group.head == entry.order
        )

    def rank(self, entry):
        return self.queues.rank_of_entry(entry, self.option(entry).amounts)

    def option(self, entry):
        return self.queues.options_of(self.state, entry.group).found[0]

    def fits(self, key):
        entry = self.queues.entries[key]
        with self.queues.leaving.without_leaving(self.state):
            if not self.queues.limits(entry).fits_limits(self.option(entry).amounts):
                return False
            return not isinstance(put(self.state, key, self.option(entry)), Refusal)

    def carry_out(self):
        """All cycles of a moment. Returns who was admitted, and who has others evicted."""
        admitted, preempting = [], []
        for _ in range(50):
            made = cycle(self.state, self.queues, self.now)
            admitted += [one.key for one in made.admitted]
            preempting += [one.key for one in made.preempting]
            for one in made.admitted:
                self.bind(one)
            for one in made.preempting:
                self.victims += len(one.victims)
                self.going.update(dict.fromkeys(victim.key for victim in one.victims))
            if not made.more:
                break
        return admitted, preempting

    def decide(self):
        """All cycles of a moment. Returns what is wrong with what they decided."""
        first = self.first()
        before = {key: self.rank(entry) for key, entry in self.queues.entries.items() if entry.phase is Phase.WAITING}
        admitted, preempting = self.carry_out()
        held = [key for key in (*self.state.workloads, *self.queues.quotas.held) if role_of(key) is Role.SUCCESSOR]
        if held:
            return f"{held} is held between cycles"
        if first is None or self.queues.holders.evicting.keys() - set(self.queues.leaving.workloads):
            return ""  # or a plan may count on the quota of somebody who was told to go and does not
        key = first
        followed = *self.queues.successors, *self.queues.leaving.spent
        if any(self.comes_before(other, key, before) for other in (*admitted, *preempting, *followed)):
            return ""  # somebody before it got something, will have it, or gave way to somebody
        if key in preempting:
            return f"{key} has others evicted, and fits once those are gone that leave"
        self.queues.leaving.review_leaving(self.state, self.now)  # victims leave as well
        if key not in admitted and not self.fits(key):
            return f"{key} fitted once those were gone that leave, and does not after {admitted} got in"
        return ""

    def bind(self, one):
        key = one.key
        (part,) = one.grant.assignments
        ask = self.queues.entries[key].workload.pod_sets[0].requests[GPU]
        self.running[key] = ask
        nodes = [node for piece in part.slices for node, count in piece.nodes for _ in range(count)]
        for number, node in enumerate(nodes):
            pod = f"{key}-{number:02}-{self.now}"
            self.state.set_pod(Pod(key=pod, node=node, requests={GPU: ask}, claim=(key, "main")))
            self.queues.bind(pod, key)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_first_in_the_order_keeps_what_it_fits_once_others_are_gone(seed):
    history, said = History(seed), []
    with judged_plans(said.append, lambda: history.now, lambda: list(history.orphans)):
        for _ in range(STEPS):
            history.step()
            assert history.decide() == "", history.now
            assert said == [], history.now


def test_fewer_are_evicted_than_where_nobody_waits_for_those_that_leave():
    """So these histories show something."""
    victims = [0, 0]
    for seed in range(SEEDS):
        for at, leaving in enumerate((0.0, 60.0)):
            history = History(seed, leaving=leaving)
            for _ in range(STEPS):
                history.step()
                history.carry_out()
            victims[at] += history.victims
    assert victims[1] < victims[0]
