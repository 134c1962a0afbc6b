"""One history from a seed: a cluster, its users, a bad network, and a controller that dies and comes back.

1. Users do what they like, and so does a hostile tenant, while the network fails and the controller crashes between any
   two of its writes.
2. All that comes to rest. What a freshly started controller holds is what the last one held, and it writes nothing.
3. All pods end. Whoever would fit an idle cluster had its turn, and then nothing is held any more.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import structlog
from support.history import loop as loops
from support.history import needless, tree_decisions
from support.history.actors import Cluster, takes
from support.history.admission import AdmissionPlugins
from support.history.contention import TreeContention
from support.history.filters import HiddenFilter
from support.history.gangs import Gangs
from support.history.judge import GROWS, Judge
from support.history.kueue import KueueJobs
from support.history.losses import draw_minimums
from support.history.nominations import Nominations
from support.history.server import (
    HOSTILE,
    NAMESPACE,
    Json,
    Server,
    ended,
    gated,
    is_set,
    is_true,
    over,
    owner_of,
    owners,
)
from support.history.stored import HOSTNAME, name_of, slices_of
from support.history.trees import CohortTrees
from support.history.users import Users
from support.history.wire import Faults, Wire

from crds.settings import Settings
from engine.reservation_key import HolderKey, Role, part_of, role_of, workload_of
from kube.events import EventRecorder
from queueing.queues.queues import Queues
from ungater import assembly, controller
from ungater.assembly import assemble
from ungater.controller import Controller
from ungater.executor import eviction
from ungater.kueue import bridge
from ungater.metrics import ControllerMetrics
from ungater.numa import node_backoff
from ungater.reconcile import let_go
from ungater.status import queues

OWN = (Role.WORKLOAD, Role.GROWTH)  # what is held in these roles is no trial, and kept from nobody
STEPS = 400_000  # of the loop, in all
# Seconds without a change, after which things are at rest: longer than most pauses, than limits of time, and than a
# Workload of nobody stays that is heard of only once its watch is whole again.
QUIET = 110.0
SHORT = 10.0  # the same where nothing should be going on
STARTS = 40  # calls of a controller that starts: which kinds there are, in which versions, and a list of each
LONGER = 420.0  # the same where something is amiss, for what is put off for long on purpose
PATIENCE = 5.0  # seconds for which the scheduler may refuse a pod
HANGING = 120.0  # seconds after which none of those is there any more: with the time of lost nodes, and an eviction
STATUS = 10.0  # seconds between looks at the status of queues, of which nothing here depends
_metrics = ControllerMetrics()


class Broken(AssertionError):  # noqa: N818 -- it is what happened to a history
    """What is wrong with a history, and the end of it."""


def run(seed: int) -> "History":
    """Live through the history of ``seed``. Raises Broken."""
    history = History(seed)
    history.live()
    return history


class Term:
    """One life of the controller."""

    def __init__(self, history: "History", faults: Faults) -> None:
        self.wire = Wire(history.server, history.rng, faults, history.note)
        clock = history.loop.clock
        client = self.wire.client(clock)
        recorder = EventRecorder(client, "ungater", instance="simulated", clock=clock)
        self.died = asyncio.Event()
        parts = assemble(history.settings, client, _metrics, recorder, clock, restart=lambda _: self.died.set())
        self.controller = Controller(parts, recorder, _metrics, clock)
        self.wire.crash = self._crash
        self.tasks = [asyncio.create_task(self.controller.run()), asyncio.create_task(recorder.run())]
        for task in self.tasks:
            task.add_done_callback(lambda _: self.died.set())

    def _crash(self) -> None:
        self.wire.dead = True
        self.died.set()


class History:
    """See the module's rules. ``lines``: what happened, for people."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"history {seed}")
        self.loop = loops.Loop(random.Random(f"order {seed}"), STEPS)
        self.lines: list[tuple[float, tuple[Any, ...]]] = []
        self.server = Server(self.loop)
        self.trees = CohortTrees(self.server, seed, self.note)
        self.judge = Judge(self.server, self.trees)
        self.nominations = Nominations(self.server, seed)
        self.cluster = Cluster(self.server, self.rng, HiddenFilter(seed), self.nominations.kept_from)
        self.kueue = KueueJobs(self.server, self.cluster, seed, self.note)
        self.faults = _faults(self.rng)
        minimums = draw_minimums(seed)
        self.settings = Settings(
            ungate_concurrency=4,
            ungate_batch_seconds=0.5,
            expectation_timeout_seconds=10,
            replacement_timeout_seconds=60,
            eviction_patience_seconds=10,
            priority_boost_rest_seconds=20,
            requeuing_backoff_base_seconds=5,
            requeuing_backoff_max_seconds=20,
            requeuing_backoff_limit_count=3,
            unschedulable_patience_seconds=PATIENCE,
            nominate_gated_pods=self.nominations.on,
            missing_pods_timeout_seconds=20,
            missing_pods_recovery_timeout_seconds=50,
            reclaim_grace_seconds=20,
            queue_patience_seconds=self.rng.choice((86_400, 86_400, 30)),
            wait_for_pods_ready_timeout_seconds=self.rng.choice((None, None, None, 120)),
            moves_per_hour=random.Random(f"moves {seed}").choice((0, 1000)),
            move_rest_seconds=5,
            # Dice of its own: histories without it stay what they were.
            fair_use_half_life_seconds=30.0 if random.Random(f"use {seed}").random() < 0.2 else None,
            minimum_run_time_within_cluster_queue_seconds=minimums.within,
            minimum_run_time_reclaim_seconds=minimums.others,
            beside_kueue=self.kueue.there,
            fair_sharing=self.trees.fair,
        )
        self.judge.losses.minimums = minimums
        self.plugins = AdmissionPlugins(self.server, seed, self.note)
        by_use = self.settings.fair_use_half_life_seconds is not None
        boosts = seed % 6 == 2 or (self.trees.there and seed % 3 == 2)
        self.users = Users(self.server, self.cluster, self.rng, self.note, by_use=by_use, boosts=boosts)
        self.contention = TreeContention(self.trees, self.users, seed, self._kill)
        self.gangs = Gangs(self.server, self.cluster, seed, self.note)
        self.term: Term | None = None
        self.terms = 0
        self._activity = asyncio.Event()
        self._errors: list[str] = []

    def note(self, *what: Any) -> None:
        """Remember for people what happened."""
        self.lines.append((self.loop.now, what))

    def live(self) -> None:
        """All of it. Raises Broken."""
        before = structlog.get_config()
        structlog.configure(
            processors=[self._logged], wrapper_class=structlog.make_filtering_bound_logger(40), **_uncached(before)
        )
        random.seed(f"product {self.seed}")
        self.loop.set_exception_handler(lambda _, context: self._errors.append(f"loop: {context}"))
        judged = self.server.judge
        self.server.judge = lambda key, old, new, who: (
            self._tell(key, old, new, who),
            self.trees.saw(key),
            judged(key, old, new, who),
            self.kueue.saw(key, old, new, who),
            self.users.saw(key, who),
        )
        try:
            with fewer_tasks(), loops.groups_in_order(), self._judged_plans(), self._judged_trees():
                asyncio.set_event_loop(self.loop)
                self.loop.run_until_complete(self._live())
        except RuntimeError as error:
            raise self._broken([str(error)]) from error
        finally:
            structlog.configure(**before)
            self._close()

    def _judged_plans(self) -> AbstractContextManager[None]:
        return needless.judged_plans(
            self.judge.wrong.append, self.loop.clock.now, lambda: needless.stopping(self.term.controller)
        )

    def _judged_trees(self) -> AbstractContextManager[None]:
        return tree_decisions.judged_decisions(self.trees, self.judge.wrong.append, lambda: self.term.controller)

    def _close(self) -> None:
        self.loop.choose = None
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)

    def _logged(self, _: Any, method: str, event: Json) -> Json:
        if event.get("exc_info") is True:
            structlog.processors.format_exc_info(None, method, event)
        self._errors.append(f"{method}: {event}")
        raise structlog.DropEvent

    # --- the three parts ---------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        self.server.wake = self._wake
        self.users.begin()
        self.plugins.begin()
        self.kueue.begin()
        self.gangs.begin()
        self.trees.begin()
        self.contention.begin()
        self.term = Term(self, self.faults)
        background = asyncio.create_task(self._others())
        background.add_done_callback(self._ended)
        for _ in range(self.rng.randint(6, 30 if self.users.tenant.share else 22)):
            await self._until(self.rng.expovariate(1 / self.rng.choice((0.05, 1.0, 8.0))))
            self.users.act()
            if self.cluster.hidden.on and self.rng.random() < 0.2:
                self.cluster.hidden.change_mind()
                self._activity.set()
        await self._until(self.rng.random() * 20)
        # Part 2.
        _calm(self.faults)
        self.users.rest()
        self.plugins.rest()
        self.gangs.rest()
        self.trees.rest()
        self.contention.rest()
        if self.cluster.hidden.on:
            await self._until(HANGING + QUIET)
            self._hanging()
            self.cluster.hidden.open()
            self._activity.set()
        limit = self.settings.wait_for_pods_ready_timeout_seconds or 0.0
        await self._settle(self._unsettled, QUIET + limit)
        held, written, claimed = self._held(), self.server.ours, self._claimed()
        memory = self.term.controller.parts.cache
        doubts = any(memory.doubts.about(namespace, self.loop.now) for namespace in (NAMESPACE, HOSTILE))
        otherwise = any(entry.made or entry.asked_for_more for entry in memory.entries.values())
        self._match_store(held)
        ending = self._ending()
        await self._end_term()
        self.term = Term(self, self.faults)
        await self._settle(self._unsettled, SHORT)
        # With claims, the first of those who have waited long by now claims, and not who was the first to. A namespace
        # whose pods did not come is believed anew, and so is a template that pods are not made like. A pod that came to
        # the end of a long grace meanwhile made room.
        otherwise = otherwise or doubts or bool(ending - self._ending()) or self._turned(memory.queues)
        if not claimed and not self._claimed() and not otherwise:
            self._match_restart(held, written)
        self._check()
        # Part 3.
        self.users.open_all()
        self.cluster.everything_ends = True
        self._activity.set()
        await self._settle(self._undone, SHORT)
        self.users.delete_all()
        await self._settle(self._left, SHORT)
        background.cancel()
        await self._end_term()

    def _ended(self, background: "asyncio.Task[None]") -> None:
        if not background.cancelled():
            self._errors.append(f"the rest of the cluster ended: {background.exception()!r}")

    async def _others(self) -> None:
        """The rest of the cluster, in its own time."""
        while True:
            if not self.cluster.step():
                self._activity.clear()
                await self._activity.wait()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.01, 0.3, 2.0)))

    def _kill(self) -> None:
        """The controller dies."""
        if self.term is not None:
            self.note("crash", "by hand")
            self.term.wire.crash()

    def _wake(self, plural: str) -> None:
        self._activity.set()
        if self.term is not None:
            for stream in tuple(self.term.wire.streams):
                stream.wake(plural)

    async def _until(self, seconds: float) -> None:
        """Let time pass, with another controller wherever one died."""
        end = self.loop.now + seconds
        while True:
            try:
                async with asyncio.timeout_at(end):
                    await self.term.died.wait()
            except TimeoutError:
                break
            await self._end_term()
            await asyncio.sleep(1.1 + self.rng.random() * self.rng.choice((1, 30)))
            self._delete_workloads()
            self.term = Term(self, self.faults)
        self._check()

    def _delete_workloads(self) -> None:
        """Now and then somebody deletes Workloads while no controller is there to see it."""
        rng = random.Random(f"away {self.seed} {self.terms}")
        there = sorted(self.server.all("workloads"), key=lambda one: one["metadata"]["name"])
        for each in rng.sample(there, min(len(there), rng.choice((0, 0, 0, 1, 2)))):
            self.server.delete(each, "admin")

    async def _end_term(self) -> None:
        term, choose = self.term, self.loop.choose
        self.terms += 1
        self.note("the controller ends")
        term.wire.dead = True
        self.loop.choose = None  # what a dead one does is of no account, and its order comes from addresses
        for task in term.tasks:
            if task.done() and not task.cancelled():
                self._errors.append(f"a task of the controller ended: {task.exception()!r}")
            task.cancel()
        for result in await asyncio.gather(*term.tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError | None):
                self._errors.append(f"a task of the controller ended with {result!r}")
        self.loop.choose = choose
        random.seed(f"product {self.seed} {self.terms}")

    async def _settle(self, amiss: Callable[[], list[str]], first: float) -> None:
        """Until nothing changes any more; then nothing may be amiss, nor may anybody be busy."""
        for quiet in (first, LONGER):
            since, commits = self.loop.now, self.server.commits
            deadline, calls, steps = since + 20 * LONGER, self.term.wire.calls, self.loop.steps
            while self.loop.now - since < quiet:
                await self._until(2.0)
                if self.server.commits != commits:
                    since, commits, calls, steps = (
                        self.loop.now,
                        self.server.commits,
                        self.term.wire.calls,
                        self.loop.steps,
                    )
                if self.loop.now > deadline:
                    self.judge.wrong.append("it does not come to rest")
                    break
            waiting = 2 * sum(
                1 for at in ("jobs", "jobsets", "pods", "workloads") for _ in self.server.within(at, HOSTILE)
            )
            waiting += 2 * len(list(owners(self.server)))  # a controller that starts tells them why: an event on each
            waiting += 0 if calls else STARTS
            if self.term.wire.calls - calls > 20 + waiting + quiet * 2 or self.loop.steps - steps > 500 + quiet * 100:
                used = self.term.wire.calls - calls, self.loop.steps - steps
                self.judge.wrong.append(f"busy though nothing happens: calls and steps in {quiet:g} s: {used}")
            wrong = amiss()
            if not wrong:
                break
        else:
            self.judge.wrong += wrong
        self._check()

    # --- what is looked at -------------------------------------------------------------------------------------------

    def _held(self) -> Json:
        """What the controller holds, as plain data."""
        memory = self.term.controller.parts.cache
        return {
            "slots": {
                f"{workload_of(key)}{GROWS}" if role_of(key) is Role.GROWTH else str(key): sorted(
                    (part.values, part.count) for each in parts.values() for part in each.slices
                )
                for key, parts in memory.state.workloads.items()
                if role_of(key) in OWN  # what a claimant keeps from others is no holding
            },
            "quota": {key: (each.queue, dict(each.amounts)) for key, each in memory.queues.quotas.held.items()},
            "pods": sorted(  # on nodes that are there, with the cpu that they take
                (key, pod.requests.get("cpu", 0) // 1000)
                for key, pod in memory.state.pods.items()
                if self.server.get("nodes", pod.node)
            ),
            "phases": {
                key: str(entry.phase) for key, entry in memory.queues.entries.items() if entry.grant is not None
            },
        }

    def _turned(self, before: Queues) -> bool:
        """Whether somebody evicted one for whom it was evicted before a restart: a ring has one more turn after it."""
        fresh = self.term.controller.parts.cache.queues
        return any(
            victim in before.eviction_order.takers_before(taker)
            for victim in fresh.entries
            for taker in fresh.eviction_order.takers_before(workload_of(victim))
        )

    def _ending(self) -> set[str]:
        """Uids of the pods that were told to stop and are still there."""
        pods = self.server.all("pods")
        return {pod["metadata"]["uid"] for pod in pods if pod["metadata"].get("deletionTimestamp")}

    def _hanging(self) -> None:
        """Nothing is held for pods that the scheduler refuses for longer than they are waited for."""
        for pod in self.server.within("pods", NAMESPACE):
            said = next((one for one in pod["status"].get("conditions") or () if one["type"] == "PodScheduled"), None)
            coming = (
                said is not None and not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
            )
            if coming and _was_sent(pod) and said["lastTransitionTime"] < self.server.now(-HANGING):
                self.judge.wrong.append(f"pod {name_of(pod)} is refused since {said['lastTransitionTime']}, and stays")
        self._check()

    def _claimed(self) -> set[str]:
        """Who keeps room or quota from those behind it."""
        return set(self.term.controller.parts.cache.queues.claims)

    def _match_restart(self, held: Json, written: int) -> None:
        """A fresh controller holds the same, and had nothing to write; but for what a tenant wrote in our name."""
        forged = self.users.tenant.share and not self.server.policies
        if self.server.ours != written and not forged:
            self.judge.wrong.append("a restart where nothing had happened wrote something")
        now = self._held()
        if forged:
            if _his(held) - _his(now):
                return  # by what he wrote he lost what he held, and others may have it
            held, now = _honest(held), _honest(now)
        if now != held:
            self.judge.wrong.append(f"after a restart it holds\n  {now}\nand before\n  {held}")

    def _match_store(self, held: Json) -> None:
        """What is held is what is stored."""
        stored = self.judge.slots_to_hold()
        honest = {key: slots for key, slots in held["slots"].items() if not key.startswith(f"{HOSTILE}/")}
        if stored != honest:
            self.judge.wrong.append(f"stored are\n  {stored}\nand held\n  {honest}")
        bound = sorted(
            (name_of(pod), takes(pod)["cpu"])
            for pod in self.server.all("pods")
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in {"Succeeded", "Failed"}
        )
        coming = {name_of(pod) for pod in self.server.all("pods") if not gated(pod) and not pod["spec"].get("nodeName")}
        if bound != [one for one in held["pods"] if one[0] not in coming]:
            self.judge.wrong.append(f"on nodes are\n  {bound}\nand charged\n  {held['pods']}")

    def _unsettled(self) -> list[str]:
        fits = self.users.plain(self.settings)
        kept, astray = needless.kept(self.term.controller.parts.cache), self.nominations.astray()
        left = self.kueue.left()
        return [*self.judge.unsettled(fits=fits), *self._for_nobody(), *self._unpaid(), *kept, *astray, *left]

    def _for_nobody(self) -> list[str]:
        """What is held for what does not exist: slots and quota of workloads beyond their pods, and of pods."""
        memory, wrong = self.term.controller.parts.cache, []
        held: Counter = Counter()
        for key, parts in memory.state.workloads.items():
            if role_of(key) in OWN:
                held[key] = sum(slot.count for part in parts.values() for slot in part.slices)
        for key, entry in memory.queues.entries.items():
            if entry.grant is not None:
                held[key] = max(held[key], sum(entry.grant.counts.values()))
        for key, count in held.items():
            namespace, _, name = str(key).partition("/")
            workload = self.server.get("workloads", name, namespace)
            if workload is None and not self.judge.payers.runs_for(namespace, name):
                wrong.append(f"{count} pods of {key} are held, and there is no such Workload")
            elif (
                workload is not None
                and (there := self.judge.pods_for(workload)) < count
                and not self.judge.waits_for_long(workload)
                and not (
                    there
                    and (
                        is_true(workload.get("status"), "Evicted")  # it gives back all at once, when the last is gone
                        or (workload.get("status") or {}).get("nomination")  # workers come once their leader runs
                        or not self.server.policies
                    )
                )
                and (namespace != HOSTILE or self.server.policies)  # who writes Workloads himself says what they hold
            ):
                wrong.append(f"{key} holds {count} pods, and {there} are there")
        for key, charged in memory.queues.quotas.held.items():
            if key not in held and any(charged.amounts.values()) and not self._charged(key):
                wrong.append(f"{key} is charged {charged}, and does not run")
        return wrong

    def _charged(self, key: HolderKey) -> bool:
        """Whether what is charged by itself is a pod that runs, or what pods take beside what their workload holds."""
        namespace, _, name = workload_of(key).partition("/")
        if part_of(key):
            return self.judge.payers.runs_for(namespace, name)
        pod = self.server.get("pods", name, namespace)
        return pod is not None and not gated(pod) and not ended(pod)

    def _unpaid(self) -> list[str]:
        """What runs by a queue, and is not counted there."""
        quotas, wrong = self.term.controller.parts.cache.queues.quotas, []
        for queue, cpu in self.judge.payers.running_now().items():
            counted = quotas.used(queue, ("gpu", "cpu")) // 1000
            if queue and counted < cpu:
                wrong.append(f"pods that take {cpu} cpu run by {queue}, and {counted} are counted")
        return wrong

    def _undone(self) -> list[str]:
        """Who did not get its turn though it would fit an idle cluster.

        Where pods of a workload run, and others of it wait for more than it was given, it holds what it has for ever.
        """
        wrong: list[str] = []
        holding = (each["status"] for each in self.server.all("workloads") if slices_of(each))
        conditions = (one for status in holding for one in status.get("conditions", ()))
        if any((one["type"], one["reason"]) == ("PodsReady", "AsksForMore") for one in conditions):
            return wrong
        for job in owners(self.server):
            workload = next(
                (each for each in self.server.all("workloads") if owner_of(each) == job["metadata"]["uid"]), None
            )
            if over(job) or not self.judge.wanted(job):
                continue
            if is_set(job) and workload is not None and slices_of(workload):
                if self.judge.beyond_quota(job):
                    return []  # its queue was cut below it: pods of it run, and never all of them
                continue  # a set that could not grow beside its pods is let be
            if workload is None or self.judge.fits(job, workload, idle=True):
                wrong.append(f"job {job['metadata']['name']} never had its turn: {workload and workload.get('status')}")
        return wrong

    def _left(self) -> list[str]:
        """What is held by nobody."""
        memory, held = self.term.controller.parts.cache, self._held()
        held["pods"] = [one for one in held["pods"] if "always" not in one[0]]
        things = {
            **held,
            "records": memory.entries,
            "entries": memory.queues.entries,
            "ids": memory.entries._ids,
            "places": memory.left_pods._places,
            "moving": memory.reservations.moving,
            "evicting": memory.queues.holders.evicting,
        }
        left = [f"all jobs are gone, and left are {name}: {value}" for name, value in things.items() if value]
        stored = [each["metadata"]["name"] for each in self.server.all("workloads")]
        return [*left, *(f"all jobs are gone, and left is Workload {name}" for name in stored)]

    def _check(self) -> None:
        if self.judge.wrong or self.kueue.wrong or self._errors:
            raise self._broken([*self.judge.wrong, *self.kueue.wrong, *self._errors])

    def _broken(self, wrong: list[str]) -> Broken:
        shown = [f"{at:9.3f}  {' '.join(map(str, what))}" for at, what in self.lines[-600:]]
        return Broken(
            "\n".join([f"seed {self.seed} at {self.loop.now:.3f} s:", *wrong, "", "the end of its history:", *shown])
        )

    def _tell(self, key: tuple[str, str, str], old: Json | None, new: Json | None, who: str) -> None:
        self.note(f"{who}:", *_summary(key, old, new))


@contextmanager
def fewer_tasks() -> Iterator[None]:
    """Workers that are never all busy here, and looks that nothing here depends on, cost most of the time."""
    with (
        patch.object(queues, "TICK", STATUS),
        patch.object(controller, "WORKERS", 4),
        patch.object(assembly, "EVICTIONS", 3),
        patch.object(bridge, "WORKERS", 1),
        # These are forgotten in a restart, which then differs.
        patch.object(eviction, "SPARED", 20.0),
        patch.object(node_backoff, "LONG_AT_MOST", 60.0),
        patch.object(let_go, "LONGEST_PAUSE", 60.0),  # as all limits of time it ends before things are at rest
    ):
        yield


def _summary(key: tuple[str, str, str], old: Json | None, new: Json | None) -> list[Any]:
    plural, _, name = key
    head = [plural, name]
    if new is None:
        return [*head, "gone"]
    said: list[Any] = [*head, "new" if old is None else "->"]
    meta, spec, status = new["metadata"], new.get("spec") or {}, new.get("status") or {}
    if plural == "pods":
        host = (spec.get("nodeSelector") or {}).get("kubernetes.io/hostname", "")
        said += [
            "gated" if spec.get("schedulingGates") else f"slot {host}",
            spec.get("nodeName", "-"),
            status.get("phase"),
        ]
        said += ["terminating"] if meta.get("deletionTimestamp") else []
        said += ["untracked"] if not meta.get("finalizers") else []
    elif plural == "workloads":
        said += [[(each.pod_set, each.labels[HOSTNAME], each.count) for each in slices_of(new)]]
        said += ["nominated"] if status.get("nomination") else []
        said += [f"{one['type']}={one['status']}({one['reason']})" for one in status.get("conditions") or ()]
        said += [] if spec.get("active", True) else ["inactive"]
    elif plural == "jobs":
        said += [
            "suspended" if spec.get("suspend") else "",
            f"{spec['parallelism']} pods",
            {k: v for k, v in status.items() if k != "conditions"},
        ]
        said += [f"{one['type']}={one['status']}" for one in status.get("conditions") or ()]
    elif plural == "jobsets":
        said += ["suspended" if spec.get("suspend") else ""]
        said += [
            f"{one['name']}: {one['replicas']}x{one['template']['spec']['parallelism']}"
            for one in spec["replicatedJobs"]
        ]
        said += [f"{one['type']}={one['status']}" for one in status.get("conditions") or ()]
        said += [f"restarts {status.get('restarts', 0)}"]
    elif plural == "leaderworkersets":
        said += [f"{spec['replicas']} groups of {spec['leaderWorkerTemplate']['size']}"]
        said += ["with a leader of its own"] if "leaderTemplate" in spec["leaderWorkerTemplate"] else []
    elif plural in {"statefulsets", "podgroups"}:
        said += [f"{spec['replicas']} pods"]
    elif plural == "nodes":
        said += [spec, status["conditions"][0]["status"]]
    elif plural == "clusterqueues":
        said += [spec.get("stopPolicy", ""), spec["resourceGroups"][0]["flavors"][0]["resources"]]
    return said


def _was_sent(pod: Json) -> bool:
    """Whether a pod that somebody makes again was let go to a node."""
    owned = any(one.get("controller") for one in pod["metadata"].get("ownerReferences") or ())
    return owned and not gated(pod) and HOSTNAME in (pod["spec"].get("nodeSelector") or {})


def _honest(held: Json) -> Json:
    """What is held for others than the hostile tenant."""
    return {
        name: {key: value for key, value in things.items() if not _is_his(key)}
        for name, things in held.items()
        if isinstance(things, dict)
    }


def _his(held: Json) -> set[str]:
    """By whom something is held for the hostile tenant."""
    return {key for name in ("slots", "quota") for key in held[name] if _is_his(key)}


def _is_his(key: HolderKey) -> bool:
    return role_of(key) in {Role.WORKLOAD, Role.ORPHAN} and workload_of(key).startswith(f"{HOSTILE}/")


def _uncached(config: Json) -> Json:
    return {
        key: value
        for key, value in config.items()
        if key not in {"processors", "wrapper_class", "cache_logger_on_first_use"}
    }


def _faults(rng: random.Random) -> Faults:
    """A network that is fine, bad in some ways, or bad in all."""

    def some(most: float) -> float:
        return rng.random() * most if rng.random() < 0.5 else 0.0

    return Faults(
        before=some(0.15),
        after=some(0.15),
        conflict=some(0.1),
        late=some(0.05),
        crash=some(0.04),
        cut=some(0.1),
        stall=some(0.03),
        slow=some(0.4),
        delay=rng.choice((0.01, 0.05, 0.5)),
    )


def _calm(faults: Faults) -> None:
    for name in ("before", "after", "conflict", "late", "crash", "cut", "stall", "slow"):
        setattr(faults, name, 0.0)
    faults.delay = 0.01
