"""What administrators are told: of moves, of nodes and flavors, of settings, and of what could not be done."""

import asyncio
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
from support.engine_factories import ask, make_node, make_pod_set, make_state, placed
from support.owned import KEYS, make_known, make_owner, make_pod, make_record
from support.sentences.events import EVICTED, HELD, admitted, at, looked_at, of, said, service
from support.sentences.events import told as told_of
from support.sentences.golden import Golden

from crds.settings import LONGEST, SettingsError, load, read_good
from engine.cluster.unlabeled import Unlabeled
from engine.reasons import Reason
from engine.results import Refusal
from kube.connection import kubeconfig
from kube.connection.config import TokenFile, client_tls, load_in_cluster
from kube.errors import ConfigError
from kube.objects import Pod, ResourceFlavor
from ungater import process
from ungater.cache.nodes import relabelled_in_words
from ungater.executor import messages
from ungater.executor.notices import SAFER
from ungater.identity import not_the_ungater
from ungater.kueue.retries import RetryAnswer
from ungater.let_go import place_refusals
from ungater.model import actions as i
from ungater.model.conditions import MOVING
from ungater.model.unstarted import SILENT
from ungater.numa import node_backoff
from ungater.reconcile import moves
from ungater.scheduling import move_messages, relocation, replacement
from ungater.scheduling.scheduler import RELABELLED
from ungater.status import flavor_labels, flavors
from ungater.writers import evictor, pods

GOLDEN = Golden("administration")
case = GOLDEN.case
FULL = "2 pods do not fit one rack"


def plain(title, *rows):
    """Cases that call a plain function of messages."""
    GOLDEN.section(title)
    for name, text in rows:
        GOLDEN.add(name, lambda text=text: text)


GOLDEN.section("moves")
UNDER_WAY = said(MOVING, "it comes together: 1 of its 4 pods moves, for 1 instead of 2 domains of rack")


def moving(*pods, **more):
    return admitted(*pods, conditions=(*HELD, UNDER_WAY), **more)


@case
def a_pod_that_is_moved():
    found = of(
        i.EvictMoved, looked_at(moving(at("a"), make_pod("b", at=("b", "r2", "n3"), node="n3", phase="Running")))
    )
    return found[0].pods[0][1]


@case
def a_move_that_is_over():
    owner = msgspec.structs.replace(make_owner(), ready=4)
    pods = [at(name, node) for name, node in zip("abcd", ("n1", "n1", "n2", "n2"), strict=True)]
    return told_of(looked_at(moving(*pods, owner=owner)), MOVING)


@case
def a_move_of_one_that_holds_nothing_any_more():
    observed = make_known(make_owner(), conditions=[UNDER_WAY])
    return told_of(moves.ended(make_record(observed=observed)), MOVING)


@case
def a_move_whose_successors_are_not_ready():
    owner = msgspec.structs.replace(service(), ready=1)
    pods = [at("a", owner=owner), make_pod("b", owner=owner, at=("b", "r2", "n3"), node="n3", phase="Running")]
    return of(i.GiveUpMove, looked_at(moving(*pods, owner=owner)))[0].why


@case
def a_move_whose_pods_take_long_to_stop():
    pods = [at("a"), make_pod("b", at=("b", "r2", "n3"), node="n3", phase="Running", terminating=True)]
    return of(i.GiveUpMove, looked_at(moving(*pods)))[0].why


@case
def a_workload_that_is_written_again_while_it_is_moved():
    pod = make_pod("b", at=("b", "r2", "n3"), node="n3", phase="Running")
    return moves.moving_conditions(admitted(pod), KEYS.workload)[0]


@case
def a_pod_that_is_not_safe_to_evict():
    return relocation.stays({relocation.SAFE_TO_EVICT: "false"}, 30)


@case
def a_pod_that_takes_long_to_stop():
    return relocation.stays({}, 3600)


def hindered(entry=None, *, devices="", **changes):
    entry = entry or admitted(**changes)
    entry.grant = entry.grant or SimpleNamespace(assignments=())
    claims = SimpleNamespace(has_claims=lambda _: devices == "claims", device_hindrance=lambda _: devices or None)
    none = SimpleNamespace(uncovered=(), naming=lambda _: ())
    return relocation.why_not_relocated(
        SimpleNamespace(device_claims=claims, pods_in_group=lambda _: (), stores=none), entry
    )


@case
def one_that_holds_nothing_to_move():
    return relocation.why_not_relocated(None, make_record())


@case
def one_whose_places_change():
    return hindered(lost={"main": ((0, 1),)})


@case
def one_that_is_evicted_meanwhile():
    return hindered(conditions=(*HELD, said(EVICTED)))


@case
def one_of_an_owner_that_replaces_pods_in_unknown_ways():
    return hindered(owner=msgspec.structs.replace(make_owner(), open_ended=True))


@case
def one_that_is_moved_already():
    return hindered(conditions=(*HELD, UNDER_WAY))


@case
def one_with_devices_of_claims():
    return hindered(devices="claims")


@case
def one_with_devices_that_are_not_counted():
    return hindered(devices="other")


def kept(pod, *, allowed):
    state = make_state([make_node("n1", block="b", rack="r")])
    record = admitted(pod)
    record.grant = SimpleNamespace(assignments=placed(ask(state, make_pod_set(2, gpu=1))).assignments)
    cache = SimpleNamespace(queues=SimpleNamespace(budgets=SimpleNamespace(allows=lambda *_: allowed)))
    return relocation.kept(cache, record, SimpleNamespace(assignments=()))


@case
def one_that_a_budget_keeps():
    return kept(at("a"), allowed=False)


@case
def one_with_a_pod_that_nobody_replaces():
    pod = at("a")
    bare = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=()))
    return kept(bare, allowed=True)


plain(
    "moves: why, and why not",
    ("a move for another workload", move_messages.makes_room("Job team-a/train")),
    ("a move of one pod for its zones", move_messages.realigned(["pod a has NUMA zones 0, 1"])),
    ("a move of pods for their zones", move_messages.realigned([f"pod {name} has NUMA zones 0, 1" for name in "ab"])),
    (
        "a move of one pod to others",
        move_messages.less_spread_message(1, 4, [move_messages.gain(1, 2, "example.com/rack")]),
    ),
    ("a move that an administrator asked for", move_messages.asked_for("(request 7)")),
    ("one that is not moved", move_messages.not_moved("(request 7)", "it is there already")),
    ("too many moves", move_messages.not_moved("(request 7)", move_messages.used_up(10))),
    ("a move that is given up", move_messages.given_up("", "they take long to stop")),
    (
        "a move that an administrator asked for is given up",
        move_messages.given_up("(request 7)", "they take long to stop"),
    ),
)

GOLDEN.section("nodes and flavors")


@case
def a_node_that_lacks_labels():
    return flavors.message_of("gpu", ("example.com/block", "example.com/rack"))


@case
def a_node_whose_label_names_no_domain():
    return flavors.message_of("gpu", ("example.com/rack=",))


@case
def a_level_that_no_node_has():
    return flavor_labels.lost_in_words(("example.com/rack",))


@case
def a_flavor_that_takes_pods():
    return active(4)


@case
def a_flavor_without_nodes():
    return active(0)


def active(nodes):
    body = {"metadata": {"name": "gpu"}, "spec": {"topology": {"levels": ["example.com/rack"]}}}
    flavor = msgspec.json.decode(msgspec.json.encode(body), type=ResourceFlavor)
    return flavors.changed(flavor, nodes, (), 0.0)["conditions"][0]["message"]


@case
def why_one_waits_beside_nodes_that_are_left_out():
    refused = SimpleNamespace(describe_refusals=lambda *_: "n1 (TopologyAffinityError, again in 24 s)")
    silent = SimpleNamespace(describe_refusals=lambda *_: "", given=lambda _: "")
    cache = SimpleNamespace(mismatches=refused, refusals=silent, node_refusals=silent, device_claims=silent, flavors={})
    return replacement.refused_text(cache, make_record(), Refusal(Reason.DOES_NOT_FIT, FULL, "main"))


@case
def why_one_waits_beside_nodes_that_lack_labels():
    return f"{FULL}; {replacement.could_take((Unlabeled('n1', ('example.com/rack',), 2),))}"


@case
def a_node_on_which_pods_do_not_start():
    return node_backoff.listed([node_backoff.Avoided("n1", f"{place_refusals.NOT_STARTED}: {SILENT}", 1, 24.0)], 0.0)


plain(
    "nodes: their pods and kubelets",
    ("labels that changed under pods", relabelled_in_words(["n1 (example.com/rack was r1, is r2)"], 1) + RELABELLED),
    ("a node that starts no pods", messages.left_out(60.0, SILENT)),
    (
        "a kubelet that refused a pod",
        "the kubelet of n1 refused pod a: TopologyAffinityError" + messages.avoided("n1", 15.0),
    ),
    (
        "a kubelet that refused one for zones that are not published",
        messages.zones_unreported("TopologyAffinityError", "nvidia.com/gpu"),
    ),
    ("a node whose data can be used again", messages.usable_again("NodeResourceTopology")),
    ("a node whose sources differ", "zones: FlexTopo has 2, NodeResourceTopology has 4" + SAFER),
)

GOLDEN.section("what could not be done")


@case
def a_pod_of_an_owner_that_is_not_served():
    return messages.no_owner_that_asks(make_pod("a", owner=service()), KEYS.gate)


@case
def a_pod_of_no_owner():
    return messages.no_owner_that_asks(msgspec.convert({"metadata": {"name": "a"}}, Pod), KEYS.gate)


plain(
    "writes that the API server refuses, and budgets",
    ("a Workload that cannot be created", messages.not_created("Request entity too large")),
    ("a job that cannot be changed", messages.not_changed("Start", "field is immutable")),
    ("a gate that cannot be removed", pods.gate_kept("denied")),
    ("a priority class that is none", messages.unknown_class(KEYS, "hihg")),
    ("checks that want other nodes", messages.no_place_for_checks("mine", "zone=a", FULL)),
    ("one that stays after all", messages.spared("nobody waits for its room any more")),
    (
        "a preemption that came to nothing",
        messages.preemption_given_up("Job team-a/train", evictor.not_now(make_pod("a"), "budget x needs 3 pods")),
    ),
    (
        "a budget that does not count",
        "preempted to make room for Job ns/train"
        + messages.overridden(evictor.not_now(make_pod("a"), "budget x needs 3 pods")),
    ),
    ("a pod that stops too slowly for who takes its quota back", messages.quota_taken_back(600)),
    ("quota that Kueue gives to others", RetryAnswer().message),
)

plain(
    "settings",
    ("settings that are taken", process.taken_in_words(["movesPerHour"], ["domain"])),
    ("settings that are wrong", process.refused_in_words("movesPerHour: expected a number")),
    ("a controller that runs as somebody else", not_the_ungater("kubernetes-admin", "topogate-system")),
)


def wrong(text):
    """What is said of the text of a file of settings."""
    try:
        return read_good(text, None, source="config.yaml", env=None)
    except SettingsError as error:
        return str(error)


for _name, _text in (
    ("a setting that nobody knows", "xyzzy: 1"),
    ("a setting that is misspelt", "requireQeue: true"),
    ("a setting of another type", "movesPerHour: many"),
    ("a setting that is true or false", "leaderElection: maybe"),
    ("a setting that is a number", "leaseSeconds: soon"),
    ("a setting that is one of a few", "logFormat: xml"),
    ("a setting that is too large", "leaseSeconds: 90000"),
    ("a list that is too long", "usageLabels: [a, b, c, d, e]"),
    ("a list that is too short", "deviceClassMappings: [{name: a, deviceClassNames: []}]"),
    ("a text that is too short", "domain: ''"),
    ("a text that is too long", f"namespace: {'a' * 64}"),
    ("a domain that is none", "domain: Not_A"),
    ("a namespace that is none", "namespace: a.b"),
    ("a label that is none", "usageLabels: [a b]"),
    ("a resource that is none", "uncountedResources: [a b]"),
    ("lines that are none", "deviceClassMappings: [x]"),
    ("a field that is not there", "deviceClassMappings: [{name: a}]"),
    ("a setting with a field too many", "deviceAnnotations: [{resource: a, key: b, more: c}]"),
    ("times of the lease", "leaseSeconds: 4"),
    ("what landings are worth", "preemptionAcross: 1"),
    ("times of certificates", "certificateDays: 30"),
    ("another domain than that of the Kueue beside", "domain: topogate.dev\nbesideKueue: true"),
    ("settings that are a list", "- a"),
    ("settings that are broken YAML", "a: ["),
    ("settings that are nested too deeply", "[" * 5000 + "]" * 5000),
    ("settings that are not YAML", "a: 2026-99-99"),
    ("settings with an alias", "a: &b 1\nc: *b"),
    ("settings that are too long", "#" * (LONGEST + 1)),
):
    GOLDEN.add(_name, lambda text=_text: wrong(text))


@case
def last_good_settings_that_are_wrong():
    try:
        return read_good("a: 1", "b: 1", source="config.yaml", env=None)
    except SettingsError as error:
        return str(error)


@case
def a_file_of_settings_that_is_not_there():
    try:
        return load("/no/such/config.yaml", {})
    except SettingsError as error:
        return str(error)


NO_FILE = "/no/such/file"


def failed(make):
    """What is said of a configuration that cannot be used."""
    try:
        return make()
    except ConfigError as error:
        return str(error)


def chosen(context=None, **merged):
    return failed(lambda: kubeconfig.choose({"clusters": [], "users": [], "contexts": []} | merged, context))


def kubeconfig_of(text):
    """What is said of a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config")
        path.write_text(text)
        return failed(lambda: kubeconfig.merge(str(path))).replace(folder, "/home/me")


async def _token():
    try:
        await TokenFile(Path(os.devnull)).refresh()
    except ConfigError as error:
        return str(error)


async def _in_pod():
    with mock.patch.dict(os.environ, clear=True):
        try:
            await load_in_cluster()
        except ConfigError as error:
            return str(error)


TWO_CONTEXTS = [{"name": name, "context": {"cluster": "c"}} for name in ("a", "b")]
plain(
    "a kubeconfig, and the files of a pod",
    ("a kubeconfig that is not there", failed(lambda: kubeconfig.merge(NO_FILE))),
    ("a kubeconfig that is a list", kubeconfig_of("- a")),
    ("a kubeconfig with an entry without a name", kubeconfig_of("users: [{}]")),
    ("no current context", chosen(contexts=TWO_CONTEXTS)),
    ("a context that is not there", chosen("x", contexts=TWO_CONTEXTS)),
    ("a context where there is none", chosen("x")),
    ("a context without a cluster", chosen("a", contexts=TWO_CONTEXTS)),
    ("a CA that is not there", failed(lambda: client_tls(NO_FILE))),
    ("a client certificate that is not there", failed(lambda: client_tls(None, NO_FILE, NO_FILE))),
)


@case
def a_token_file_that_is_empty():
    return asyncio.run(_token())


@case
def a_pod_without_the_address_of_the_api_server():
    return asyncio.run(_in_pod())
