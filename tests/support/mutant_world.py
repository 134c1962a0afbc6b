"""Rounds in which mutated objects meet the real controller, with honest ones beside them.

The controller, its client and its informers run on a loop of virtual time, against an API server that is a dict
(`support.history`), over a network without faults. In each round

1. a controller starts where half of the mutants are there already (`Memory.load`);
2. the others come, some change, some are deleted and made again;
3. all of them go, and with them what was made for them.

After 1 and 2 the honest jobs that came meanwhile are placed. After 3 the controller's tables are what they are in a
round without mutants. No task of the controller ends, and nothing is raised, not even within the guard of one object.
"""

import asyncio
import collections
import ctypes
import functools
import gc
import random
import resource as limits
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

import msgspec
import numpy as np
import structlog
from support import mutants
from support.history import loop as loops
from support.history.history import Term, fewer_tasks
from support.history.server import SERVED, Server, describe
from support.history.wire import Faults, Wire

from crds.settings import Settings
from kube import resources
from ungater import workqueue
from ungater.executor import deferred
from ungater.numa import node_backoff
from ungater.reconcile import missing_pods

A_ROUND = mutants.BLOCK_OF
AGAIN = 0.4  # of them change
STEPS = 2_000_000
WAIT = 12.0  # seconds in which whatever waits for nothing is placed
QUIET = 700.0  # seconds after which a controller that nobody disturbs is at rest
FORGET = (130.0, 130.0, 260.0, 520.0)  # after these nobody remembers anything
SOONER = 300.0  # seconds, where the product takes an hour
SMALL = 96  # bytes of a small object, on average
SHORT = 0.01  # seconds that most steps take at most
CLOCK = time.perf_counter
MORE = tuple(kind for kind in mutants.KINDS if kind not in SERVED.values())
HONEST = "honest"  # namespace, queue, flavor, pool and taint of those who do nothing wrong
RACK, HOST = "honest/rack", mutants.HOST
LEAVES = frozenset({str, int, float, bool, bytes, type(None)})
OURS = ("ungater", "queueing", "engine", "kube", "crds")
# What remembers so much and no more, whoever comes: (class.attribute) -> how much more there may be.
CACHES = {
    "Guard._logged": 1024,
    "SharedTable._rows": 2 * 4096,  # series of events, and how often objects may have new ones
    "_Series.key": 5 * 4096,
    "Transport._headers": 8,  # one for each type of body
    "FlavorStatus._made": 2,  # the flavors of who does nothing wrong
    "StaleReasons._told": 8,  # queues that are there, by when those in them were told last
    "Table._vectors": 4096 * 16,
    "Table.log": 4 * 4096,  # entries, some of which name a range of leaves
    "Table.labels": 5,  # columns of labels that nodes have, made where a selector names one
    "LabelColumn.codes": 5 * 64,
    "LabelColumn.values": 5 * 8,
    "InFlightPods._observing": 8,  # nodes that are there
    # what held something keeps its series for a day: of a namespace 200 names, with each flavor and resource of quota
    "QueueMetrics._waited": 8,
    **dict.fromkeys(("_Names._known", "_Seconds.grew", "_Seconds.sums", "MetricTable._rows"), 4 * 4096),
    "Type.parameters": 4096,  # of what selectors of devices were read as
    "Program._codes": 64,  # the latest of them, of so many characters in all
    "TreeNode.potential": 8,  # of each quota of queues that are there, once somebody asked for it
    "QueueConfig.local": 2,  # of namespaces that are there: who waits without a queue
    "PendingWorkloads.rooms": 8,
    "PendingQueue._ready": 32,  # a heap of each queue that is there
    **dict.fromkeys(
        ("PendingWorkloads._later", "PendingWorkloads.aging"), 64
    ),  # heaps: who went is in them until their time
    **dict.fromkeys(("Holders._numbers", "Holders._priorities", "Holders._held_in", "Holders.by_flavor"), 8),
    "PendingWorkloads.pools": 8,
    **dict.fromkeys(("Nodes.at", "Nodes.by_name", "Fleet._at", "Fleet._slot", "Fleet._kind"), 256),  # that pods named
    "Queues.memo": 4096,
    "ChangeLog._names": 2 * 4096,
    "ClaimedDevices._asks": 1024,
    **dict.fromkeys(("LatestOfEach._kept", "LatestOfEach._owners"), 2 * 1024),  # kinds of pods with claims
    "_Turns._last": 1024,
    "Kind.forms": 4 * 128,
    "DeviceViews._views": 128,
    "DeviceView._ids": 4096,  # of 128 views, each of the nodes that look differently
    **dict.fromkeys(("DeviceView.paths", "DeviceView.attributes"), 1024),
    **dict.fromkeys(("ClaimCounter._answers", "ClaimCounter._sets", "ClaimCounter.claims", "Claim.requests"), 4096),
    **dict.fromkeys(("NodeCounts._names", "NodeCounts._values", "NodeCounts.left"), 4096),
    "Kind._known": 2 * 128,
    **dict.fromkeys(("DeviceLedger._known", "NodePlaces._names"), 256),  # of nodes that are in the table
    "DeviceNode.labels": 256 * 4,
    "_Numbers._ids": 4096,  # states of devices; bounded as a whole
    "_Numbers._spare": 256,  # by node in the table
    "FreeNumbers._undecided": 128,
    **dict.fromkeys(("Tree.kept", "Shape._cached", "Shape.needs", "Shape.lacking", "CountedShape.emptied"), 4096),
    **dict.fromkeys(("Shape.by_plugin", "Shape.unpublished", "Selectors._programs", "Selectors._codes"), 4096),
    **dict.fromkeys(("Program._reads", "Program._codes"), 4096),  # the codes are those of `Selectors`
    "Program._answers": 4096,
    "Answers._of": 2048,  # by selector; what is in all of them is bounded
    "Table.delegated": 1024,
    **dict.fromkeys(("Varying.keys",), 1024),
    **dict.fromkeys(("Counts.levels", "Tree.other", "Tree.owners", "Tree.domain_of"), 4096),
    **dict.fromkeys(
        ("Tree.grids", "Tree.spare", "Tree.children", "Tree.bounds", "Tree.paths", "Tree.names", "Tree._cuts"), 64
    ),
    **dict.fromkeys(("NodeFilter.terms", "NodeFilter.selector", "NodeFilter.tolerations"), 4096),
    **dict.fromkeys(
        (
            "ZoneRequest.pairs",
            "ZoneRequest.rows",
            "ZoneRequest.column",
            "ZoneRequest.amounts",
            "ZoneRequest.present",
            "ZoneRequest.widths",
            "CountPlan.asks",
        ),
        4096,
    ),
}
# What grows with the names and shapes of what administrators and kubelets make: nodes, queues, flavors, cohorts.
OF_ADMINISTRATORS = (
    "Table.",
    "LabelColumn.",
    "Slots.",
    "Nodes.",
    "Fleet.",
    "LayoutColumns.",
    "NumaLedger.",
    "Fleets.",
    "_Answer.",
    "Queues.",
    "QueueConfig.",
    "PendingWorkloads.",
    "Holders.",
    "Quotas.",
    "CohortTree.",
    "TreeNode.",
    "FlavorStatus.",
)


@dataclass
class Found:
    """What was found in all rounds."""

    objects: collections.Counter = field(default_factory=collections.Counter)
    poisoned: collections.Counter = field(default_factory=collections.Counter)  # by kind and place of the error
    undecodable: int = 0
    longest: float = 0.0  # seconds of CPU of one step
    where: str = ""
    wrong: list[str] = field(default_factory=list)

    def __str__(self):
        objects = ", ".join(f"{count} {kind}" for kind, count in self.objects.most_common())
        return (
            f"{self.objects.total()} objects ({objects}); poisoned {self.poisoned.total()}; passed over "
            f"{self.undecodable}; longest step {self.longest:.3f} s of CPU ({self.where})"
        )


class Loop(loops.Loop):
    """Measures its steps: what a step took of the CPU, and what the short ones before it did since that was read."""

    def __init__(self, found, about):
        super().__init__(None, STEPS)
        self._found = found
        self._about = about
        self._cpu = time.process_time()  # which takes long to read

    def own(self, make, *arguments):
        """What ``make`` makes: it is the fuzz that takes that long, and not what it tries."""
        began = CLOCK()
        made = make(*arguments)
        if CLOCK() - began > SHORT:
            self._cpu = time.process_time()
        return made

    def step(self, handle):
        began = CLOCK()
        handle._run()
        long = CLOCK() - began > SHORT
        if not long and self.steps % 64:
            return
        before, self._cpu = self._cpu, time.process_time()
        if long and not _of_server(handle) and self._cpu - before > self._found.longest:
            self._found.longest, self._found.where = self._cpu - before, f"{self._about}: {_named(handle)}"


def _of_server(handle):
    """Whether a step is the stand-in's for the API server, which reads what it is sent in this process."""
    return isinstance(getattr(handle._callback, "__self__", None), Wire)


def _named(handle):
    task = getattr(handle._callback, "__self__", None)
    return task.get_coro().__qualname__ if isinstance(task, asyncio.Task) else str(handle._callback)[:80]


class World(Server):
    """An API server in which objects are put as they are."""

    def put(self, resource, body):
        """Create or change an object, or make it again where its uid is another."""
        meta = body["metadata"]
        key = resource.plural, meta.get("namespace", ""), meta["name"]
        old = self.objects.get(key)
        if old is not None and old["metadata"]["uid"] != meta["uid"]:
            self._commit(key, old, None, "tenant")
            old = None
        self._commit(key, old, {**body, "metadata": {"generation": 1, **meta}}, "tenant")

    def drop(self, key):
        """An object is gone."""
        if key in self.objects:
            self._commit(key, self.objects[key], None, "tenant")


class Round:
    """One round with the mutants of these numbers; what it finds goes into ``found``."""

    def __init__(self, seed, numbers, found, tables=None):
        self.seed = seed
        self.numbers = numbers
        self.found = found
        self.tables = tables  # of a round without mutants
        self.tenants = bool(numbers) and mutants.of_tenants(numbers.start)
        self.about = f"seed {seed}, numbers {numbers.start}-{numbers.stop}"
        self.rng = random.Random(f"{self.about}")
        self.loop = Loop(found, self.about)
        self.server = World(self.loop, MORE)
        classes = [mutants.name_of(one) for one in numbers if mutants.kind_of(seed, one) == resources.DEVICE_CLASSES]
        mapping = {
            "name": "nvidia.com/gpu",
            "device_class_names": [*classes, *(f"nosuch-{one}" for one in range(7))][:7],
        }
        self.settings = Settings(
            ungate_batch_seconds=0.5, expectation_timeout_seconds=10, device_class_mappings=[mapping]
        )
        self.term = None
        self.watched = []  # what the controller watched, None for what is not served
        self._put = set()  # keys of mutants

    def note(self, *_):
        """Nobody reads on."""

    def live(self):
        """All of it."""
        before = structlog.get_config()
        structlog.configure(
            processors=[self._logged],
            wrapper_class=structlog.make_filtering_bound_logger(40),
            cache_logger_on_first_use=False,
        )
        random.seed(self.about)
        self.loop.set_exception_handler(lambda _, context: self._fail(f"loop: {context}"))
        try:
            with (
                fewer_tasks(),
                patch.object(node_backoff, "FORGET", SOONER),
                patch.object(workqueue, "LATEST", SOONER),
                patch.object(missing_pods, "DOUBT", SOONER),
                patch.object(deferred, "TICK", 2.0),
            ):
                asyncio.set_event_loop(self.loop)
                self.loop.run_until_complete(self._live())
        finally:
            structlog.configure(**before)
            self._close()

    def _close(self):
        for task in (tasks := asyncio.all_tasks(self.loop)):
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)

    def _logged(self, _, method, event):
        said = event["event"]
        if said == "object passed over: it cannot be decoded":
            self.found.undecodable += 1
            if not any(event["resource"] == str(each) for each in mutants.FOREIGN):
                self._fail(f"cannot be decoded: {event}")
        elif isinstance(error := event.get("exc_info"), Exception):
            self.found.poisoned[f"{event['kind']}: {_place(error)}"] += 1
            self.found.wrong.append(
                f"{self.about}: {event['kind']} {event['object']} poisoned: {_place(error)}: {error!r:.300}"
            )
        else:
            error = sys.exc_info()[1]
            self._fail(f"{method}: {event} {_place(error) if error is not None else ''}: {error!r:.300}")
        raise structlog.DropEvent

    def _fail(self, what):
        self.found.wrong.append(f"{self.about}: {what}")

    # --- the parts -----------------------------------------------------------------------------------------------

    async def _live(self):
        self.server.wake = self._wake
        self._begin()
        half = len(self.numbers) // 2
        self._come(self.numbers[:half])
        self._honest("a")
        self.term = Term(self, Faults())
        await self._rest(WAIT)
        self._placed("a")
        rest = list(self.numbers[half:])
        for part in range(0, len(rest), 20):
            self._come(rest[part : part + 20])
            self._change()
            await self._rest(self.rng.choice((0.0, 0.1, 1.0)))
        self._honest("b")
        await self._rest(WAIT)
        self._placed("b")
        self._go()
        await self._forgotten()
        term, informers = self.term, self.term.controller.parts.informers
        self.watched = [one.resource for one in (*informers.every, *informers.optional)]
        if term.died.is_set():
            self._fail(f"the controller ended: {[task for task in term.tasks if task.done()]}")

    async def _rest(self, seconds):
        await asyncio.sleep(seconds)

    def _wake(self, plural):
        if self.term is not None:
            for stream in tuple(self.term.wire.streams):
                stream.wake(plural)

    def _come(self, numbers):
        for number in numbers:
            self._let_in(self.loop.own(mutants.make, self.seed, number))

    def _let_in(self, mutant):
        self.found.objects[mutant.resource.plural] += 1
        self.server.put(mutant.resource, mutant.body)
        meta = mutant.body["metadata"]
        self._put.add((mutant.resource.plural, meta.get("namespace", ""), meta["name"]))

    def _change(self):
        """Some of those that may be there are other versions now, or are gone; so are Workloads that we made."""
        rng = self.rng
        for number in rng.sample(self.numbers, int(20 * AGAIN)):
            self._let_in(self.loop.own(mutants.make, self.seed, number, rng.randint(1, 1000)))
        for key in rng.sample(sorted(self._put), 2):
            self.server.drop(key)
        ours = [each for each in self.server.all("workloads") if each["metadata"]["namespace"] != HONEST]
        for each in rng.sample(ours, min(len(ours), 2)):
            status = mutants.workload_status(self.seed, rng.randrange(10**9))
            self.found.objects["workloads"] += 1
            self.server.put(resources.WORKLOADS, {**each, "status": status})

    def _go(self):
        """All mutants are deleted, and what was made for them."""
        keys = [key for key in sorted(self.server.objects) if key in self._put or (key[1] and key[1] != HONEST)]
        self.rng.shuffle(keys)
        for key in keys:
            if key not in self._always:
                self.server.drop(key)

    # --- who does nothing wrong ----------------------------------------------------------------------------------

    def _begin(self):
        put = self.server.put
        for name in (HONEST, *dict.fromkeys(mutants.NAMESPACES)):
            put(resources.NAMESPACES, _object(resources.NAMESPACES, name, {}))
        self._pool(HONEST, [f"{HONEST}-{each}" for each in range(4)], RACK)
        self._pool(mutants.QUEUE, mutants.NODES, mutants.RACK)
        self._queue(HONEST, HONEST, (RACK, HOST))
        for namespace in dict.fromkeys(mutants.NAMESPACES):
            self._queue(mutants.QUEUE, namespace, mutants.LEVELS)
        self._always = set(self.server.objects)

    def _pool(self, pool, names, rack):
        for number, name in enumerate(names):
            labels = {mutants.POOL: pool, rack: f"r{number // 2}", HOST: name}
            if pool != HONEST:  # else a pod of another pool could keep all others off both
                labels[mutants.BLOCK] = "b0"
            taints = [{"key": HONEST, "effect": "NoSchedule"}] if pool == HONEST else []
            status = {
                "allocatable": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            node = _object(resources.NODES, name, {"taints": taints}, labels=labels)
            self.server.put(resources.NODES, {**node, "status": status})

    def _queue(self, name, namespace, levels):
        quota = {"name": "cpu", "nominalQuota": "64"}
        groups = [{"coveredResources": ["cpu"], "flavors": [{"name": name, "resources": [quota]}]}]
        spec = {"nodeLabels": {mutants.POOL: name}, "topology": {"levels": list(levels)}}
        self.server.put(resources.RESOURCE_FLAVORS, _object(resources.RESOURCE_FLAVORS, name, spec))
        spec = {"resourceGroups": groups, "namespaceSelector": {}}
        self.server.put(resources.CLUSTER_QUEUES, _object(resources.CLUSTER_QUEUES, name, spec))
        self.server.put(
            resources.LOCAL_QUEUES, _object(resources.LOCAL_QUEUES, name, {"clusterQueue": name}, namespace)
        )

    def _honest(self, part):
        """A job with a queue, one without, and a pod group; each of two pods behind the gate."""
        for name, labels in ((f"queued-{part}", {mutants.KEYS.queue_name: HONEST}), (f"plain-{part}", {})):
            request = {mutants.KEYS.required[0]: RACK}
            spec = {"parallelism": 2, "completions": 2, "suspend": False, "template": _pod_of(request)}
            job = _object(resources.JOBS, name, spec, HONEST, labels=labels)
            self.server.put(resources.JOBS, job)
            owner = {**describe(resources.JOBS), "name": name, "uid": job["metadata"]["uid"], "controller": True}
            self._pods(name, request, ownerReferences=[owner])
        group = {mutants.KEYS.pod_group: f"group-{part}"}
        self._pods(f"group-{part}", {mutants.KEYS.required[0]: RACK, mutants.KEYS.pod_group_total: "2"}, labels=group)

    def _pods(self, name, request, **meta):
        for number in range(2):
            pod = _object(resources.PODS, f"{name}-{number}", _pod_of({})["spec"], HONEST, annotations=request, **meta)
            self.server.put(resources.PODS, {**pod, "status": {"phase": "Pending"}})

    def _placed(self, part):
        """Whether the gate of each honest pod was removed."""
        for pod in self.server.all("pods"):
            meta = pod["metadata"]
            if meta["namespace"] == HONEST and f"-{part}-" in meta["name"] and pod["spec"].get("schedulingGates"):
                self._fail(f"honest pod {meta['name']} was not placed")

    # --- what is left --------------------------------------------------------------------------------------------

    async def _forgotten(self):
        """Wait until the tables are what they are without mutants."""
        if self.tables is None:
            await self._rest(QUIET)
            self.tables = sizes(self.term.controller)
            return
        for seconds in FORGET:
            await self._rest(seconds)
            self._go()  # Workloads that were on their way go with their owners
            if not (more := self._more()):
                return
        self._fail(f"left behind: {more}")

    def _more(self):
        now, exempt = sizes(self.term.controller), () if self.tenants else OF_ADMINISTRATORS
        return {
            name: (self.tables.get(name, 0), size)
            for name, size in now.items()
            if size > self.tables.get(name, 0) + CACHES.get(name, 0) and not name.startswith(exempt)
        }


def _place(error):
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{where}"


def _object(resource, name, spec, namespace="", **meta):
    place = {"namespace": namespace} if namespace else {}
    meta = {"name": name, "uid": f"{resource.plural}-{name}", "creationTimestamp": mutants.BORN, **place, **meta}
    return {**describe(resource), "metadata": meta, "spec": spec}


def _pod_of(request):
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "schedulingGates": [{"name": mutants.KEYS.gate}],
        "tolerations": [{"key": HONEST, "operator": "Exists"}],
    }
    return {"metadata": {"annotations": request}, "spec": spec}


def sizes(root):
    """How much is in each container that can be reached from an object of ours, by class and attribute."""
    found, seen, todo = collections.Counter(), set(), [("", root)]
    while todo:
        name, thing = todo.pop()
        kind = type(thing)
        if kind in LEAVES or isinstance(thing, Enum) or id(thing) in seen:  # members are made once, and never more
            continue
        seen.add(id(thing))
        if isinstance(thing, dict | MappingProxyType):
            found[name] += len(thing)
            todo += [(name, each) for each in thing.values() if type(each) not in LEAVES]
        elif isinstance(thing, list | set | tuple | frozenset | collections.deque):
            found[name] += len(thing)
            todo += [(name, each) for each in thing if type(each) not in LEAVES]
        elif isinstance(thing, np.ndarray):
            found[name] += thing.size
        elif kind.__module__.partition(".")[0] in OURS and not isinstance(thing, type) and not _is_plain(kind):
            slots = (slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ()))
            todo += [  # in this order: an array that has two names counts under the same one each time
                (f"{kind.__name__}.{each}", getattr(thing, each, None))
                for each in (*getattr(thing, "__dict__", ()), *slots)
                if each not in {"__dict__", "__weakref__"}
            ]
    return found


def _is_plain(kind):
    """Whether its objects are data alone, and no table: so it says itself, for nothing in them is looked through."""
    return issubclass(kind, msgspec.Struct) and not kind.__struct_config__.gc


def memory():
    """MiB that are in use and that the process has, without what is remembered of past calls (a bounded number).

    What it has is more: hundreds of controllers that lived in it one after the other leave gaps. In use is what the C
    library gave out, and Python's small objects, of `SMALL` bytes each.
    """
    gc.unfreeze()  # the caches of what was imported before are among what `tests/conftest.py` froze
    gc.collect()
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper and str(thing.__module__).partition(".")[0] in OURS:
            thing.cache_clear()
    large = 0
    with suppress(OSError, AttributeError):  # where the C library is another
        library = ctypes.CDLL("libc.so.6")
        library.malloc_trim(0)
        library.mallinfo2.restype = _Given
        given = library.mallinfo2()
        large = given.uordblks + given.hblkhd
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (large + SMALL * sys.getallocatedblocks()) / 2**20, pages * limits.getpagesize() / 2**20


class _Given(ctypes.Structure):
    """``struct mallinfo2`` of the GNU C library, bytes: among them what was given out of the heap, and by mmap."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@functools.cache
def tables():
    """How much is in each table after a round without mutants."""
    plain = Round("", range(0), Found())
    plain.live()
    if plain.found.wrong:
        raise AssertionError(plain.found.wrong)
    return plain.tables


def run(seed, first, count, found):
    """Rounds for so many mutants, from this number on; how many they were."""
    for start in range(first - first % A_ROUND, first + count, A_ROUND):
        Round(seed, range(max(first, start), min(start + A_ROUND, first + count)), found, tables()).live()
    return count
