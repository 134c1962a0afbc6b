"""What the page asks, answered by the code of ``topogate queues``, ``explain`` and ``place``; names by what is seen."""

import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
import yaml

from cli.cluster import cluster_snapshot, dry_run, live_queues, room_report
from cli.cluster import required_evictions as reliefs
from cli.cluster.dump import Dump
from cli.cluster.manifests import read as read_manifests
from cli.explain import queue_report
from cli.explain.growth import growth, in_words
from cli.output import Failure
from cli.place import report as place_report
from cli.queues.report import MOST_WORDS, why
from cli.queues.report import report as queues_report
from clock import Clock
from crds.settings import Settings
from engine.reasons import traits_of
from kube.workloads import WholeWorkload
from ungater import kinds
from ungater.cache.cache import Cache
from ungater.cache.rules import queue_rules
from ungater.model.workload_entry import WorkloadEntry
from web.questions import Json, QuestionError
from web.sight import Sight

MOST_DOCUMENTS: Final = 32
MOST_PODS: Final = 20_000  # that a manifest may make
MOST_EVENTS: Final = 50_000  # of YAML: a key, a value, and the beginning and end of a list or an object are one each
PREFIX: Final = "topogate-question-"
OTHERS: Final = "somebody else's"
UNTOLD: Final = "the details may name what is in namespaces that you may not see"
_COUNTS: Final = {
    name: re.compile(rf"\b{name}[\"']?\s*:\s*[\"']?(\d{{1,9}})") for name in ("replicas", "size", "parallelism")
}
_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


class ClusterQuestions:
    """Answers from one reading of a cluster at a time: ``reading`` gives what is there now."""

    def __init__(
        self, reading: Callable[[], tuple[Dump, Iterable[WholeWorkload]]], settings: Settings, clock: Clock
    ) -> None:
        self._reading = reading
        self._settings = settings
        self._clock = clock

    def queues(self, sight: Sight) -> Json:
        """See `web.questions`."""
        try:
            reading = self._queues(*self._reading())
            found = queues_report(reading)
        except Failure as failure:
            raise QuestionError(str(failure)) from None
        made: Json = msgspec.to_builtins(found)
        if sight.namespaces is not None:
            for one in (one for queue in made["queues"] for one in queue["waiting"]):
                # What is computed now may name jobs of others; what is stored on the viewer's own Workload is theirs to
                # read anyway.
                stored = reading.condition(one["workload"])
                one |= {"reason": stored.reason, "message": stored.message, "short": stored.message[:MOST_WORDS]}
        kept = [one for queue in made["queues"] if (one := _queue(queue, sight)) is not None]
        cohorts = made["cohorts"] if sight.queues else []
        inactive = [key for key in made["inactive"] if sight.may_name(key.partition("/")[0])]
        return {"queues": kept, "cohorts": cohorts, "inactive": inactive, "at": self._clock.now()}

    def explain(self, key: str, sight: Sight) -> Json:
        """See `web.questions`."""
        dump, workloads = self._reading()
        cache = self._cache(dump)
        entry = cache.entries.of_workload(key)
        if entry is None:
            raise QuestionError("nothing is known of its owner")
        reading = self._queues(dump, workloads)
        made: Json = {"reason": "", "message": "", "queue": None, "room": [], "relief": None, "growth": None}
        if key in reading.workloads and entry.job.queue:
            charged = cache.charged(entry)
            place = queue_report.place(reading, cache.state, key, charged, entry.job.title, keys=cache.keys)
            made["queue"] = msgspec.to_builtins(place)
            if key in reading.queues.entries and sight.namespaces is None:
                made["reason"], made["message"] = why(reading, key)
            else:  # in the words that are stored on it, which whoever may read it knows
                stored = reading.condition(key)
                made["reason"], made["message"] = stored.reason, stored.message
        if entry.admission is not None:
            made["growth"] = self._growth(cache, entry, _flavors(reading, made["queue"]), sight)
            return _unnamed(made, sight)
        dry_run.enqueue_entry(cache, entry, self._clock.now())
        room = room_report.rooms_of_entry(cache, entry, _flavors(reading, made["queue"]))
        made["room"] = _rooms(msgspec.to_builtins(room), sight)
        reason = made["reason"] or (str(entry.refused.reason) if entry.refused is not None else "")
        relief = reliefs.relief(cache, entry, reason, room) if sight.hosts else None
        made["relief"] = _relief(msgspec.to_builtins(relief), sight)
        return _unnamed(made, sight)

    def _growth(self, cache: Cache, entry: WorkloadEntry, flavors: Collection[str] | None, sight: Sight) -> Json | None:
        """What one lacks that is admitted and waits to grow, as ``topogate explain`` has it."""
        found = growth(cache, entry, flavors, self._clock.now())
        if found is None:
            return None
        if sight.namespaces is not None:
            found = msgspec.structs.replace(found, message=found.reason)  # the message may name others
        made: Json = msgspec.to_builtins(found)
        relief = _relief(made["relief"], sight) if sight.hosts else None
        return {**made, "text": in_words(found), "room": _rooms(made["room"], sight), "relief": relief}

    def place_manifest(self, text: str, namespace: str, sight: Sight) -> Json:
        """See `web.questions`."""
        # Before the cluster is read: a manifest that is too large must cost no more than its parsing.
        _check(text, namespace)
        dump, _ = self._reading()
        try:
            with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
                # As a file, so that it is read by exactly the code that reads the command line's.
                path = Path(folder) / "manifest"
                path.write_text(text, encoding="utf-8")
                found = read_manifests([str(path)])[0]
            answers = place_report(
                self._cache(dump), found, namespace, self._clock.now(), require_queue=self._settings.require_queue
            )
        except Failure as failure:
            raise QuestionError(re.sub(rf"\S*{PREFIX}\S*/manifest", "the manifest", str(failure))) from None
        return {"answers": [_placed(one, sight) for one in msgspec.to_builtins(answers)]}

    def _cache(self, dump: Dump) -> Cache:
        return cluster_snapshot.cache_of(dump, self._settings, clock=self._clock)

    def _queues(self, dump: Dump, workloads: Iterable[WholeWorkload]) -> live_queues.QueueReading:
        return live_queues.build(
            dump.of(kinds.FLAVORS),
            dump.of(kinds.NAMESPACES),
            dump.of(kinds.CLUSTER_QUEUES),
            dump.of(kinds.LOCAL_QUEUES),
            workloads,
            dump.of(kinds.COHORTS),
            rules=queue_rules(self._settings),
            now=self._clock.now(),
        )


def _check(text: str, namespace: str) -> None:
    """Raises QuestionError for what would cost more than it looks like: names for repeated parts, very many pods."""
    if not _NAME.match(namespace):
        raise QuestionError(f"{namespace[:80]}: no name of a namespace")
    documents, events = 0, 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            events += 1
            # By events, before anything is built: the loader would have made the objects by then.
            documents += isinstance(event, yaml.DocumentStartEvent)
            # A few lines of nested aliases ("billion laughs") expand to gigabytes.
            if isinstance(event, yaml.AliasEvent):
                raise QuestionError("anchors and aliases (&name, *name) are not read here: write the parts out")
            if documents > MOST_DOCUMENTS:
                raise QuestionError(f"too much for one question: at most {MOST_DOCUMENTS} objects")
            if events > MOST_EVENTS:
                raise QuestionError(f"too much for one question: at most {MOST_EVENTS} keys, values and lists")
    except (yaml.YAMLError, RecursionError) as error:
        raise QuestionError(f"expected YAML or JSON: {str(error)[:400]}") from None
    # On the text, as objects are built one a pod; a count that is too high refuses too much at worst: what multiplies
    # is multiplied, of each document.
    pods = 0
    for document in re.split(r"^---", text, flags=re.MULTILINE):
        each = 1
        for pattern in _COUNTS.values():
            each *= max(1, sum(map(int, pattern.findall(document))))
        pods += each
    if pods > MOST_PODS:
        raise QuestionError(f"{pods} pods are too many for one question here: at most {MOST_PODS}")


def _flavors(reading: live_queues.QueueReading, queue: Json | None) -> Collection[str] | None:
    """The flavors that its queue may give it; None: any."""
    return reading.flavors_of(queue["cluster_queue"]) if queue is not None else None


# --- names -----------------------------------------------------------------------------------------------------------


def _queue(queue: Json, sight: Sight) -> Json | None:
    """A cluster queue as it may be seen: those of the viewer's namespaces at least; None where it is not his at all."""
    local = [one for one in queue["local_queues"] if sight.may_name(one.partition("/")[0])]
    if not (sight.queues or local):
        return None
    waiting = [one for one in queue["waiting"] if sight.may_name(one["workload"].partition("/")[0])]
    for one in waiting:
        one["victims"] = [v for v in one["victims"] if sight.may_name(v.partition("/")[0])]
    uses = [one for one in queue["uses"] if sight.may_name(one["name"].partition("/")[0])]
    others = len(queue["waiting"]) - len(waiting)
    # Who may not look at queues sees the cohort that the queue names, and nothing of the tree above it.
    path = queue["path"] if sight.queues else queue["path"][-1:]
    made = {**queue, "path": path, "local_queues": local, "waiting": waiting, "uses": uses, "others": others}
    if not sight.queues:
        made["minimum_run_time"] = [
            {**one, "source": ""} for one in queue["minimum_run_time"] if one["cohort"] in {"", *path}
        ]
    return made


def _placed(answer: Json, sight: Sight) -> Json:
    """What would become of a workload, as it may be told."""
    # Victims and holders are of all namespaces, and their names are not everybody's to see.
    answer["relief"] = _relief(answer["relief"], sight)
    answer["victims"] = [
        one if sight.may_name(one["workload"].partition("/")[0]) else _veiled(one) for one in answer["victims"]
    ]
    answer["room"] = _rooms(answer["room"], sight)
    # Anybody may ask as if he were in a namespace: what is there is reported only to those who may see it.
    own = sight.may_name(answer["namespace"])
    if sight.namespaces is not None and not (own and (not answer["reason"] or traits_of(answer["reason"]).of_itself)):
        answer["message"] = UNTOLD
    if not own:
        answer["warnings"] = []
    return answer


def _rooms(rooms: list[Json], sight: Sight) -> list[Json]:
    """The domains, for those who may list nodes; why a node has no devices names the claims that have them."""
    if not sight.hosts:
        return []
    return rooms if sight.namespaces is None else [{**room, "devices": ""} for room in rooms]


def _relief(relief: Json | None, sight: Sight) -> Json | None:
    if relief is None:
        return None
    for part in ("heldBy", "enough"):
        # Amounts stay: who lacks room may know how much others hold, and not who they are.
        relief[part] = [one if sight.may_name(one["namespace"]) else _veiled(one) for one in relief[part]]
    if sight.namespaces is not None and any(not one["namespace"] for one in relief["enough"]):
        relief["preemption"] = ""  # it names them
    return relief


def _veiled(one: Json) -> Json:
    """Somebody whom the viewer may not know."""
    named = {"name": OTHERS, "namespace": "", "workload": "", "job": "", "queue": "", "title": ""}
    return {**one, **{key: value for key, value in named.items() if key in one}}


def _unnamed(made: Json, sight: Sight) -> Json:
    """Without what names others in sentences."""
    place = made["queue"]
    for option in place["options"] if place is not None and not sight.queues else ():
        # The tree above the cohort that the queue names is for those who may look at queues.
        option["lender"] = option["lender"] if option["lender"] == place["cohort"] else ""
    if place is not None and (tree := place.pop("tree", ())) and sight.queues:
        place["history"] = [*place["history"], *tree]
    if place is not None and (rivals := place.pop("rivals", ())) and sight.namespaces is None:
        place["history"] = [*place["history"], *rivals]
    if place is not None and sight.namespaces is not None:
        place["victims"] = [
            one if sight.may_name(one["workload"].removeprefix("pod ").partition("/")[0]) else _veiled(one)
            for one in place["victims"]
        ]
    return made
