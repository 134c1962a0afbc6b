"""Random histories: submissions, finishes, evictions, quota edits, lost nodes, restarts. What must hold, always holds.

`TOPOGATE_HISTORIES=10000 pytest tests/unit/queueing/cycle/test_histories.py` runs more of them; each is told by its
seed.
"""

import os
import random
from math import inf

import msgspec
import pytest
from support.queue_factories import GPU, RACK, make_pod_set, make_queue, make_queues, make_state, make_workload

from engine.cluster.assignment import Assignment, Slice
from engine.model import Pod, Policy
from engine.reservation_key import ReservationKey, Role, role_of, workload_of
from queueing.cycle.cycle import cycle
from queueing.cycle.elastic import Resized, resize
from queueing.cycle.growth import hold_growth
from queueing.model import ClusterQueue, LocalQueue, Preemption, Reclaim, Rules, Stop, UseRules, Within
from queueing.queues.entry import AssumedAdmission, Phase

HISTORIES = int(os.environ.get("TOPOGATE_HISTORIES", "300"))
BATCH = 50
STEPS_BY_WEIGHT = {
    "submit": 8,
    "finish": 5,
    "gone": 5,
    "evict": 2,
    "wait": 2,
    "resize": 2,
    "grow": 4,
    "delete": 1,
    "edit": 1,
    "nodes": 1,
    "stop": 1,
    "restart": 1,
    "write_failed": 1,
}
STEPS = 25


class World:
    """A cluster, its queues, and what the API server would remember; ``now`` moves on by itself."""

    def __init__(self, seed):
        self.dice = dice = random.Random(seed)
        self.now = 1000.0
        self.flavors = ("tas", "old")[: dice.choice((1, 1, 2))]
        self.racks, self.hosts = dice.randint(1, 3), dice.randint(1, 3)
        self.state = make_state(self.racks, self.hosts, flavors=self.flavors, gpu=4)
        self.all_nodes = dict(self.state.nodes)
        self.rules = Rules(patience=dice.choice((5.0, 50.0, 1e9)), fair=dice.random() < 0.3)
        self.specs = [self.spec(f"q{i}") for i in range(dice.randint(1, 4))]
        self.queues = self.make_queues()
        self.made = 0
        self.workloads = {}  # key -> Workload, all that were neither finished nor deleted
        self.stored = {}  # key -> (Grant as stored, victims): status.admission or status.nomination
        self.grown = {}  # key -> (Grant of more pods as stored, victims, those pods): the same beside an admission
        self.finished = set()
        self.preempted_for_growth = 0

    def make_queues(self):
        """Queues as they are configured, with nobody in them."""
        return make_queues(*self.specs, rules=self.rules)

    def local(self, name):
        """A LocalQueue that leads to a queue."""
        return name

    def spec(self, name):
        dice = self.dice
        if dice.random() < 0.08:
            return ClusterQueue(name=name, unlimited=True, strict=dice.random() < 0.3)
        cohort = dice.choice(("", "x", "x", "x", "y"))
        nominal = {flavor: dice.choice((0, 4, 8, 16)) for flavor in self.flavors}
        lent = min(nominal.values())
        reclaim = dice.choice(list(Reclaim))
        return make_queue(
            name,
            nominal,
            borrowing=dice.choice((None, 0, 4)) if cohort else None,
            lending=dice.choice((None, 0, lent)) if cohort else None,
            cohort=cohort,
            strict=dice.random() < 0.4,
            borrow_first=dice.random() < 0.5,
            preempt_first=dice.random() < 0.3,
            preempt_before_borrow=dice.random() < 0.125,
            weight=dice.choice((0, 500, 1000, 1000)),
            preemption=Preemption(
                within=dice.choice(list(Within)),
                reclaim=reclaim,
                borrowing=reclaim is not Reclaim.NEVER and dice.random() < 0.3,
                threshold=dice.choice((None, 1)),
            ),
        )

    # -- steps ------------------------------------------------------------------------------------------------

    def step(self):
        name = self.dice.choices(list(STEPS_BY_WEIGHT), list(STEPS_BY_WEIGHT.values()))[0]
        getattr(self, name)()
        self.check()

    def submit(self):
        dice = self.dice
        for _ in range(dice.randint(1, 4)):
            self.made += 1
            level = dice.choice((RACK, RACK, None, "auto"))
            policy = Policy.PREFERRED if level == "auto" else None
            sets = tuple(
                make_pod_set(dice.randint(1, 3), gpu=dice.choice((1, 2, 4)), level=level, policy=policy, name=f"s{i}")
                for i in range(dice.choice((1, 1, 1, 2)))
            )
            least = {"s0": 1} if sets[0].count > 1 and dice.random() < 0.2 else {}
            workload = make_workload(
                f"ns/w{self.made}",
                self.local(dice.choice(self.specs).name),
                pod_sets=sets,
                priority=dice.choice((0, 0, 1, 2)),
                created=self.now + self.made / 1000,
                at_least=least,
            )
            self.workloads[workload.key] = workload
            self.queues.submit(workload, self.now)

    def holders(self, phase=Phase.ADMITTED):
        return [key for key, entry in self.queues.entries.items() if entry.phase is phase]

    def some(self, keys):
        return self.dice.choice(keys) if keys else None

    def finish(self):
        key = self.some(self.holders())
        if key is not None:
            self.drop_pods(key)
            self.queues.remove_workload(self.state, key)
            self.forget_stored(key)
            self.finished.add(key)
            del self.workloads[key]

    def evict(self):
        key = self.some(self.holders())
        if key is not None:
            self.back(key, until=self.now + self.dice.choice((0, 3, 30)))

    def back(self, key, until=0.0):
        self.drop_pods(key)
        self.queues.release_and_requeue(self.state, key, self.now, until=until)
        self.forget_stored(key)

    def forget_stored(self, key):
        self.stored.pop(key, None)
        self.grown.pop(key, None)

    def delete(self):
        key = self.some(list(self.workloads))
        if key is not None:
            self.drop_pods(key)
            self.queues.remove_workload(self.state, key)
            self.forget_stored(key)
            del self.workloads[key]

    def edit(self):
        at = self.dice.randrange(len(self.specs))
        self.specs[at] = self.spec(self.specs[at].name)
        self.queues.set_cluster_queue(self.specs[at])

    def nodes(self):
        name = self.dice.choice(list(self.all_nodes))
        if name in self.state.nodes:
            self.state.remove_node(name)
        else:
            self.state.set_node(self.all_nodes[name])
        self.queues.pending.room_freed(self.flavors)

    def stop(self):
        at = self.dice.randrange(len(self.specs))
        stop = self.dice.choice((Stop.NONE, Stop.NONE, Stop.HOLD, Stop.DRAIN))
        if self.dice.random() < 0.5:
            self.specs[at] = msgspec.structs.replace(self.specs[at], stop=stop)
            self.queues.set_cluster_queue(self.specs[at])
        else:
            name = self.specs[at].name
            self.queues.set_local_queue(LocalQueue(namespace="ns", name=name, cluster_queue=name, stop=stop))

    def restart(self):
        """All that was in memory is lost; what the API server has is listed again, in any order."""
        before = {key: entry.phase for key, entry in self.queues.entries.items() if entry.grant}
        pods = list(self.state.pods.values())
        nodes = list(self.state.nodes.values())
        local = self.queues.config.local.values()
        self.state = make_state(0, 0, flavors=self.flavors)
        for thing in self.dice.sample(nodes, len(nodes)):
            self.state.set_node(thing)
        for thing in self.dice.sample(pods, len(pods)):
            self.state.set_pod(thing)
        fresh = self.make_queues()
        for queue in local:
            fresh.set_local_queue(queue)
        for key in sorted(self.stored, key=lambda key: bool(self.stored[key][1])):
            grant, victims = self.stored[key]
            fresh.restore_workload(self.state, self.workloads[key], grant, self.now, nominated=victims)
        for grant, victims, more in self.grown.values():
            hold_growth(self.state, fresh, more, grant, victims, {}, stored=True)
        for key in self.dice.sample(list(self.workloads), len(self.workloads)):
            fresh.submit(self.workloads[key], self.now)
        for pod in pods:
            fresh.bind(pod.key, pod.claim[0])
        self.queues = fresh
        assert {key for key, entry in fresh.entries.items() if entry.grant} == set(before)

    def gone(self):
        """Victims' pods are gone."""
        for key in list(self.queues.holders.evicting):
            if self.dice.random() < 0.7:
                self.back(key, until=self.now + 1)

    def write_failed(self):
        key = self.some([key for key in self.holders() if not self.queues.entries[key].pods])
        if key is not None:
            self.back(key, until=self.now + 1)

    def wait(self):
        self.now += self.dice.choice((1.0, 10.0, 60.0))

    def resize(self):
        """An elastic workload gets other numbers of pods, now or later; finished pods give back theirs."""
        key = self.some([key for key in self.holders() if not self.queues.entries[key].pods])
        if key is None:
            return
        counts = {name: self.dice.randint(0, 4) for name in self.queues.entries[key].grant.counts}
        if self.dice.random() < 0.5:
            self.queues.wish(key, counts)
            return
        found = resize(self.state, self.queues, key, counts)
        grant = self.queues.entries[key].grant
        if isinstance(found, Resized) and found.refusal is None:
            assert grant.counts == counts
        elif found is not None:
            assert all(grant.counts[name] <= count for name, count in counts.items())
        self.keep(key, grant)

    def grow(self):
        """An elastic workload wants a few pods more, whoever has to go for them."""
        key = self.some(self.holders())
        if key is not None:
            held = self.queues.entries[key].grant.counts
            self.queues.wish(key, {name: count + self.dice.randint(0, 2) for name, count in held.items()})

    def keep(self, key, grant):
        """What the API server has, and what every grant is."""
        self.stored[key] = (stored(grant), set())
        assert sum(part.count for part in grant.assignments) == sum(grant.counts.values())

    # -- the cycle --------------------------------------------------------------------------------------------

    def cycle(self, limit=None):
        before = {key: entry.phase for key, entry in self.queues.entries.items()}
        had = {key: entry.grant.amounts for key, entry in self.queues.entries.items() if entry.grant}
        found = cycle(self.state, self.queues, self.now, limit or self.dice.choice((1, 3, 64)))
        for one in found.given_up:
            del (self.grown if one.grows else self.stored)[one.key]
        for one in found.admitted:
            assert before[one.key] is not Phase.ADMITTED
            self.keep(one.key, one.grant)
            if self.dice.random() < 0.5:
                self.add_pods(one.key, one.grant)
        for one in found.resized:
            self.keep(one.key, one.grant)
            self.grown.pop(one.key, None)
        for one in found.preempting:
            kept = stored(one.grant), {victim.key for victim in one.victims}
            if one.grows:
                self.grown[one.key] = (*kept, self.queues.entries[ReservationKey.for_growth(one.key)].workload)
            else:
                self.stored[one.key] = kept
            assert all(before[victim.key] is Phase.ADMITTED for victim in one.victims)
        # Those whose victims are gone were within the limits when they were planned.
        grown = {workload_of(key) for key in before if role_of(key) is Role.GROWTH}
        new = [(one.key, one.grant) for one in found.resized if one.key not in grown]
        new += [(ReservationKey.for_growth(one.key) if one.grows else one.key, one.grant) for one in found.preempting]
        new += [(one.key, one.grant) for one in found.admitted if not one.preempted]
        self.check_limits(
            {
                (key, name)
                for key, grant in new
                for name, amount in grant.amounts.items()
                if amount > had.get(key, {}).get(name, 0)
            }
        )
        self.preempted_for_growth += sum(one.grows for one in found.preempting)
        self.check()
        return found

    def add_pods(self, key, grant):
        for assignment in grant.assignments:
            names = [name for part in assignment.slices for name, n in part.nodes for _ in range(n)]
            for i, name in enumerate(names):
                pod = f"{key}-{assignment.pod_set}-{i}"
                claim = (key, assignment.pod_set)
                self.state.set_pod(Pod(key=pod, node=name, requests=assignment.requests, claim=claim))
                self.queues.bind(pod, key)

    def drop_pods(self, key):
        for pod in sorted(self.queues.entries[key].pods):
            self.state.remove_pod(pod)
            self.queues.unbind(pod)

    # -- what must hold ---------------------------------------------------------------------------------------

    def check(self):
        queues = self.queues
        growths = {key for key in queues.entries if role_of(key) is Role.GROWTH}
        assert set(queues.entries) - growths == set(self.workloads), "a workload was lost"
        assert {workload_of(key) for key in growths} == set(self.grown)
        for key in growths:
            assert queues.entries[key].phase is Phase.NOMINATED
            assert queues.entries[workload_of(key)].phase is Phase.ADMITTED
        holding = {key for key, entry in queues.entries.items() if entry.grant is not None}
        assert holding == {k for k, e in queues.entries.items() if e.phase in {Phase.ADMITTED, Phase.NOMINATED}}
        assert set(queues.quotas.held) == holding
        held = {key for key in self.state.workloads if role_of(key) in {Role.WORKLOAD, Role.GROWTH}}
        assert held == {key for key in holding if queues.entries[key].grant.assignments}
        waiting = [key for line in queues.pending.lines.values() for key in line.waiting_names()]
        assert sorted(waiting) == sorted(k for k, e in queues.entries.items() if e.phase is Phase.WAITING)
        for line in queues.pending.lines.values():
            for group in line.groups.values():
                assert not group.inadmissible or group.refusal is not None
        self.check_nodes()

    def check_nodes(self):
        """No node is over-full: neither with those who leave and without those they leave for, nor the reverse."""
        for without in ("nominated", "evicting"):
            used = {}
            for key, entry in self.queues.entries.items():
                if entry.grant is None or key in getattr(self.queues.holders, without):
                    continue
                for assignment in self.state.assignments(key).values():
                    for part in assignment.slices:
                        for name, n in part.nodes:
                            used[name] = used.get(name, 0) + n * assignment.requests[GPU]
            assert all(amount <= self.all_nodes[name].allocatable[GPU] for name, amount in used.items()), without

    def check_limits(self, more):
        """Whoever got more of a quota is within its limits, counted anew from all grants.

        Victims that leave are not counted; and without a plan of this cycle, those they leave for need not be.
        """
        counted = [set(self.queues.holders.evicting)]
        if not any(key in self.queues.holders.nominated for key, _ in more):
            counted.append(set(self.queues.holders.nominated))
        for without in counted:
            used = {}
            for key, entry in self.queues.entries.items():
                if entry.grant is not None and key not in without:
                    for name, amount in entry.grant.amounts.items():
                        used[entry.grant.queue, name] = used.get((entry.grant.queue, name), 0) + amount
            for key, name in more:
                grant = self.queues.entries[key].grant
                if grant is not None and grant.amounts.get(name, 0):
                    self.check_limit(used, grant.queue, name)

    def check_limit(self, used, queue, name):
        spec = next(spec for spec in self.specs if spec.name == queue)
        if spec.unlimited:
            return
        quota = quota_of(spec, name)
        mine = used.get((queue, name), 0)
        if not spec.cohort:
            assert mine <= quota.nominal, f"{queue} uses {mine} of {quota.nominal}"
            return
        assert quota.borrowing is None or mine <= quota.nominal + quota.borrowing
        common = taken = 0
        for other in self.specs:
            if other.cohort == spec.cohort:
                theirs = quota_of(other, name)
                own = 0 if theirs.lending is None else max(0, theirs.nominal - theirs.lending)
                common += theirs.nominal - own
                taken += max(0, used.get((other.name, name), 0) - own)
        own = 0 if quota.lending is None else max(0, quota.nominal - quota.lending)
        assert mine <= own or taken <= common, f"cohort {spec.cohort} uses {taken} of {common}"

    # -- the end ----------------------------------------------------------------------------------------------

    def drain(self):
        """Everything opens and everything finishes: whatever fits alone in an idle system was admitted."""
        for node in self.all_nodes.values():
            self.state.set_node(node)
        self.queues.pending.room_freed(self.flavors)
        for i, spec in enumerate(self.specs):
            self.specs[i] = msgspec.structs.replace(spec, stop=Stop.NONE)
            self.queues.set_cluster_queue(self.specs[i])
            self.queues.set_local_queue(LocalQueue(namespace="ns", name=spec.name, cluster_queue=spec.name))
        for _ in range(40 + 6 * len(self.workloads)):
            self.now += 100.0
            found = self.cycle(64)
            for key in list(self.queues.holders.evicting):
                self.back(key, until=self.now + 1)
            busy = self.holders()
            if busy:
                self.finish()
            elif not (found.more or self.queues.holders.nominated or any(self.holders(Phase.LATER))):
                break
        else:
            raise AssertionError("it never comes to rest")
        for key, workload in self.workloads.items():
            assert not self.fits_alone(workload), f"{key} waits for nothing"

    def fits_alone(self, workload):
        state = make_state(self.racks, self.hosts, flavors=self.flavors, gpu=4)
        queues = self.make_queues()
        queues.submit(workload, self.now)
        return bool(cycle(state, queues, self.now, 64).admitted)


def quota_of(spec, name):
    return next(quotas.resources[name[1]] for quotas in spec.groups[0].flavors if quotas.flavor == name[0])


def stored(grant):
    """A grant as it comes back from the API server: no nodes, no pod sets."""
    assignments = tuple(
        Assignment(
            pod_set=part.pod_set,
            flavor=part.flavor,
            levels=part.levels,
            requests=part.requests,
            slices=[Slice(piece.values, piece.count) for piece in part.slices],
        )
        for part in grant.assignments
    )
    return AssumedAdmission(grant.queue, grant.counts, grant.flavors, grant.amounts, assignments)


class SharedWorld(World):
    """The same with several LocalQueues of each queue, which take turns by what they used in most of them."""

    def __init__(self, seed):
        self.parts = random.Random(f"parts {seed}")  # dice of their own: the rest is as in the history of that number
        # With such a half-life what was used is what is held now, so that scores can be counted anew.
        self.half_life = self.parts.choice((0.001, 600.0))
        super().__init__(seed)

    def make_queues(self):
        use = UseRules(half_life=self.half_life)
        made = make_queues(*self.specs, rules=msgspec.structs.replace(self.rules, hold=500.0, use=use))
        for spec in self.specs:
            for part, weight in (("a", 1000), ("b", 500), ("c", 0)):
                queue = LocalQueue(namespace="ns", name=f"{spec.name}-{part}", cluster_queue=spec.name, weight=weight)
                made.set_local_queue(queue)
        return made

    def local(self, name):
        return f"{name}-{self.parts.choice('aabbc')}"

    def spec(self, name):
        return msgspec.structs.replace(super().spec(name), by_use=self.parts.random() < 0.8)

    def restart(self):
        """What was used is stored, and the order is as it was."""
        was, now = self.queues, self.now
        stored = {queue.part: was.use.consumed_by(queue.part) for queue in was.config.local.values()}
        order = {name: list(was.waiting(name)) for name in was.quotas.queues}
        late = {name: set(line.late) for name, line in was.pending.lines.items()}
        super().restart()
        self.queues.pass_time(now)
        for part, consumed in stored.items():
            self.queues.use.restore_use(part, consumed, now)
        for name, before in order.items():
            # How long one waits is stored where a controller is; here all begin anew.
            after = [key for key in self.queues.waiting(name) if key in before]
            if not late[name]:
                assert after == [key for key in before if key in after]

    def check(self):
        super().check()
        if self.half_life >= 1.0:
            return
        held = {}
        for entry in self.queues.entries.values():
            if entry.grant is not None:
                part = entry.workload.part
                held[part] = held.get(part, 0) + sum(entry.grant.amounts.values())
        self.queues.pass_time(self.now + 0.5)  # many half-lives
        for queue in self.queues.config.local.values():
            score = self.queues.use.score_of(queue.part)
            assert score == (inf if not queue.weight else held.get(queue.part, 0) * 1000 / queue.weight), queue.part

    def cycle(self, limit=None):
        """As it is, and the next one is the least in its queue of those that are worth a look."""
        found = super().cycle(limit)
        for line in self.queues.pending.lines.values():
            ready = [group for group in line.groups.values() if not group.inadmissible]
            places = {group.key: line.place_of(group.head, group.part) for group in line.groups.values()}
            first = line.next()
            if first is not None:
                assert places[first.key] == min(places[group.key] for group in ready)
            elif ready:
                assert line.strict
        return found


def live(seed, kind=World):
    world = kind(seed)
    try:
        for _ in range(STEPS):
            world.step()
            world.cycle()
        world.drain()
    except Exception as wrong:
        raise AssertionError(f"history {seed}") from wrong
    return world


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_every_history_keeps_what_must_hold(first):
    for seed in range(first, min(first + BATCH, HISTORIES)):
        live(seed)


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_every_history_of_local_queues_by_use_keeps_what_must_hold(first):
    for seed in range(first, min(first + BATCH, HISTORIES)):
        live(seed, SharedWorld)


def test_histories_are_not_idle():
    worlds = [live(seed) for seed in range(100)]
    assert sum(len(world.finished) for world in worlds) > 500
    assert sum(world.preempted_for_growth for world in worlds) > 2


def test_equal_histories_decide_alike():
    for seed in range(10):
        assert live(seed).finished == live(seed).finished
