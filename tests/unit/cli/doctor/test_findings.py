"""`topogate doctor`: each thing that can be wrong is found, named and has a remedy; nothing is where all is well."""

import base64
import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from support.published import nrt, nrt_zone

from certs.authority import Lifetimes, create
from certs.store import data_of
from cli.doctor import nodes
from cli.doctor.command import render_findings
from cli.doctor.installation import Installation, differs, judge
from cli.doctor.nodes import NodesView
from cli.doctor.trial import TrialResult, try_webhook
from crds.constants import NUMA_POLICY
from crds.settings import Settings, unread_keys
from kube.errors import Forbidden, KubeTimeout, ServerError
from kube.lease import Lease, LeaseSpec
from kube.objects import (
    FlavorTopology,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    ResourceFlavor,
    ResourceFlavorSpec,
    Struct,
)
from kube.topologies import FlexTopo, FlexTopoStatus, KubeletConfig, NamedValue, NodeResourceTopology, TopologyZone
from manifests import render

DATA = Path(__file__).resolve().parents[4] / "tests/data/labels"
NOW = datetime(2026, 11, 23, tzinfo=UTC)
HOST = "kubernetes.io/hostname"


class ListOfNodes(Struct, frozen=True):
    """Nodes as kubectl prints them."""

    items: tuple[Node, ...]


def node(name, gpus=8, **labels):
    labels = {"pool": "a", HOST: name} | labels
    labels = {key: value for key, value in labels.items() if value}
    allocatable = {"cpu": "8"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return Node(metadata=ObjectMeta(name=name, labels=labels), status=NodeStatus(allocatable=allocatable))


def flavor(name="gpu", levels=("block", "rack", HOST), names=None, **labels):
    topology = FlavorTopology(levels=levels, names=names)
    spec = ResourceFlavorSpec(node_labels=labels or {"pool": "a"}, topology=topology)
    return ResourceFlavor(metadata=ObjectMeta(name=name), spec=spec)


NODES = [node(f"n{at}", block=f"b{at // 4}", rack=f"r{at // 4}{at // 2}") for at in range(8)]


GPU = (flavor(),)


def flex(topology="restricted", cpus="static"):
    kubelet = KubeletConfig(topology_manager_policy=topology, cpu_manager_policy=cpus)
    return FlexTopo(status=FlexTopoStatus(kubelet=kubelet))


def look(where=NODES, flavors=GPU, *, known=None, asked=(), agent=False, topologies=None, placed=()):
    flexes = {one.metadata.name: flex() for one in where} if known is None else known
    found = nodes.findings(NodesView(where, flavors, topologies or {}, flexes, asked, agent, placed=placed))
    return [(str(one.weight), one.about, one.message, one.mend) for one in found]


def only(found):
    ((weight, about, message, mend),) = found
    return weight, about, message, mend


def test_a_cluster_in_order_has_no_findings():
    assert look() == []
    assert "Nothing is wrong" in str(render_findings([]).renderables[0])


def test_no_flavor():
    assert only(look(flavors=()))[3] == "topogate install --topology auto"


def test_a_flavor_without_nodes():
    weight, _, message, mend = only(look(where=[node("n0", 0)], flavors=[flavor(pool="b")]))
    assert (weight, mend) == ("error", "kubectl label node NODE pool=b")
    assert "no node has its nodeLabels pool=b" in message


def test_nodes_that_lack_a_level():
    weight, about, message, mend = only(look([*NODES, node("x", block="b1")]))
    assert (weight, about) == ("warning", "flavor gpu")
    assert "node x (1 of 9) lacks the label rack" in message
    assert mend == "kubectl label node x rack=..."


def test_a_node_without_a_label_gets_that_of_its_neighbours_by_name():
    racks = [node(f"b1-r{rack}-h{host}", block="b1", rack=f"r{rack}") for rack in (1, 2) for host in (1, 2, 3)]
    racks[0], racks[4] = node("b1-r1-h1", block="b1"), node("b1-r2-h2", block="b1")
    assert only(look(racks))[3] == "kubectl label node b1-r1-h1 rack=r1; kubectl label node b1-r2-h2 rack=r2"


TIERS = ("fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0", HOST)


def fabric(name):
    return msgspec.json.decode((DATA / f"{name}.json").read_bytes(), type=ListOfNodes, strict=False).items


def tiers(levels=TIERS, unknown=None):
    topology = FlavorTopology(levels=levels, unknown_values=unknown)
    spec = ResourceFlavorSpec(node_labels={"kubernetes.io/os": "linux"}, topology=topology)
    return [ResourceFlavor(metadata=ObjectMeta(name="fabric"), spec=spec)]


def test_nodes_whose_switch_is_not_known_count_as_unlabelled():
    """Topograph 1.0.0 writes `no-topology` on nodes of which its provider knows no switch."""
    weight, about, message, mend = only(look(fabric("no-topology"), tiers(TIERS[1:])))
    assert (weight, about) == ("warning", "flavor fabric")
    assert message == (
        "nodes u0, u1, u2, u3 have fabric.topograph.run/tier-0=no-topology (4 of 10), which says that the place is not "
        "known: they count as unlabelled and take no pods"
    )
    assert "kubectl label node" not in mend
    assert mend.startswith("mend what Topograph says of u0, u1, u2, u3")
    assert look(fabric("no-topology"), tiers(TIERS[1:], unknown=())) == [], (
        "the flavor says that every value is a domain"
    )


def test_a_level_that_every_node_lost_stops_nobody_and_is_told():
    weight, about, message, mend = only(look([node(f"x{at}", block="b1", rack="") for at in range(2)]))
    assert (weight, about) == ("warning", "flavor gpu")
    assert "none of its 2 nodes has the label rack of a level: a job that requires the level waits" in message
    assert f"topogate install --topology block,{HOST} --flavor gpu-2" in mend


def test_one_dead_cable_makes_blocks_of_uneven_sizes():
    """What Topograph made of one fabric with a dead cable, at random: once one spine for all leaves, once two."""
    assert look(fabric("dead-cable-1"), tiers()) == []
    weight, about, message, mend = only(look(fabric("dead-cable-2"), tiers()))
    assert (weight, about) == ("warning", "flavor fabric")
    assert "the domains of fabric.topograph.run/tier-1 have 1 to 3 of fabric.topograph.run/tier-0" in message
    assert "a cable between switches may be dead" in message
    assert "iblinkinfo" in mend


def test_labels_that_an_older_version_of_the_tool_left_behind():
    """Topograph 1.0 writes new keys and takes nothing off that 0.x wrote, which stays as it was."""
    old, new = "network.topology.nvidia.com/leaf", "fabric.topograph.run/tier-0"
    both = [node(f"n{at}", **{old: f"s{at // 4}", new: f"s{at // 4}"}) for at in range(8)]
    _, _, message, mend = only(look(both, [flavor(levels=(old, HOST))]))
    assert f"the label {old} of a level is no longer updated" in message
    assert f"--topology {new},{HOST}" in mend
    assert look(both, [flavor(levels=(new, HOST))]) == []
    assert look([node(f"n{at}", **{old: "s1"}) for at in range(2)], [flavor(levels=(old, HOST))]) == []


def test_pods_on_nodes_whose_labels_changed_since_they_were_placed():
    def pod(name, where, rack):
        spec = PodSpec(node_name=where, node_selector={"block": "b0", "rack": rack, HOST: where})
        return "Job team/train", Pod(metadata=ObjectMeta(name=name, namespace="team"), spec=spec)

    assert look(placed=[pod("a", "n0", "r00"), pod("b", "gone", "r00")]) == []
    weight, about, message, mend = only(
        look(placed=[pod("a", "n0", "r00"), pod("b", "n1", "r09"), pod("c", "n2", "r09")])
    )
    assert (weight, about) == ("warning", "flavor gpu")
    assert message.startswith(
        "2 pods of Job team/train run on nodes whose labels changed since: nodes n1, n2 (rack of n1"
    )
    assert "was r09, is r00" in message
    assert "topogate requeue -n team job/train places it again" in mend
    assert "kubectl label node --overwrite n1 rack=r09" in mend
    _, tenants = pod("a", "n1", "r09")
    *_, mend = only(look(placed=[("A $(b) team/train", tenants)]))
    assert "topogate requeue -n team 'a $(b)/train' places it again" in mend, "any text may be the kind of an owner"


def test_labels_that_do_not_nest():
    wrong = [*NODES, *(node(f"m{at}", block="b0", rack="r00") for at in range(2)), node("odd", block="b1", rack="r00")]
    weight, _, message, mend = only(look(wrong))
    assert weight == "warning"
    assert "1 of 4 domains of rack lie in several of block: r00 is in b0, but with node odd in b1" in message
    assert mend == "kubectl label node --overwrite odd block=b0"


def test_racks_that_are_named_alike_in_some_blocks_are_no_finding():
    alike = [node(f"n{at}", block=f"b{at // 4}", rack=f"r{at % 4 // 2}") for at in range(8)]
    assert look(alike) == []
    assert look([*alike, *(node(f"m{at}", block="b0", rack=f"r{2 + at}") for at in range(4))]) == []


def test_levels_the_wrong_way_round():
    weight, _, message, mend = only(look(flavors=[flavor(levels=("rack", "block", HOST))]))
    assert (weight, "rack lies within block" in message) == ("error", True)
    assert "--topology block,rack" in mend


def test_flavors_that_share_nodes_or_names():
    both = [flavor(), flavor("other", levels=("rack", HOST), names={"row": "rack"})]
    assert "counted twice" in only(look(flavors=both))[2]
    names = [flavor(names={"row": "rack"}), flavor("other", ("block", HOST), {"row": "block"}, pool="b")]
    found = look([*NODES, node("z", pool="b", block="b")], names)
    assert '"row" is the name of different levels' in only(found)[2]


RACKS = [node(f"b{b}-r{r}-h{h}", block=f"b{b}", rack=f"r{r}") for b in (1, 2, 3) for r in (1, 2) for h in (1, 2, 3)]


def test_a_wrong_block_among_racks_named_alike():
    assert look(RACKS) == []
    wrong = [one if one.metadata.name != "b1-r1-h2" else node("b1-r1-h2", block="b3", rack="r1") for one in RACKS]
    weight, about, message, mend = only(look(wrong))
    assert (weight, about) == ("warning", "flavor gpu")
    assert "node b1-r1-h2 seems to have a wrong block" in message
    assert mend == "kubectl label node --overwrite b1-r1-h2 block=b1"


def test_racks_before_blocks_that_are_named_alike():
    weight, _, message, mend = only(look(RACKS, [flavor(levels=("rack", "block", HOST))]))
    assert (weight, message) == ("error", "its levels are the wrong way round: rack is narrower than block")
    assert f"topogate install --topology block,rack,{HOST} --flavor gpu-2" in mend


def test_several_nodes_that_lack_a_level():
    message = only(look([*NODES, node("x", block="b1"), node("y", block="b1")]))[2]
    assert message == "nodes x, y (2 of 10) lack the label rack of a level, and take no pods"


def test_accelerators_outside_of_every_flavor():
    _, about, message, mend = only(look([*NODES, node("x", pool="b"), node("cpu", 0, pool="b")]))
    assert about == "nodes"
    assert "node x has accelerators and no flavor" in message
    assert mend == "kubectl label node x pool=a"


WISH = [("Job default/train", {NUMA_POLICY: "single-numa-node"})]


@pytest.mark.parametrize(
    ("agent", "asked", "weight", "mend"),
    [
        (False, (), "warning", "topogate install --agent"),
        (False, WISH, "error", "topogate install --agent"),
        (True, WISH, "warning", "kubectl -n topogate-system-agent get pods -o wide"),
    ],
)
def test_missing_agents(agent, asked, weight, mend):
    found = only(look(known={}, agent=agent, asked=asked))
    assert (found[0], found[1], found[3]) == (weight, "agents", mend)


def test_simulated_nodes_take_no_agent():
    simulated = [
        Node(
            metadata=msgspec.structs.replace(one.metadata, annotations={"kwok.x-k8s.io/node": "fake"}),
            status=one.status,
        )
        for one in NODES
    ]
    assert look(simulated, known={}) == []
    found = only(look(simulated, known={}, asked=WISH))
    assert (found[0], found[1]) == ("error", "agents")
    assert "topogate local nodes --machine" in found[3]


def test_kubelets_that_cannot_keep_what_is_asked():
    lax = {one.metadata.name: flex("none", "none") for one in NODES[:2]}
    known = {one.metadata.name: flex() for one in NODES[2:]} | lax
    assert look(known=known) == [], "nobody asks"
    first, second = look(known=known, asked=WISH)
    assert "Job default/train asks for topogate.dev/numa-policy: single-numa-node" in first[2]
    assert "nodes n0, n1" in first[2]
    assert "topologyManagerPolicy: restricted" in first[3]
    assert "cpuManagerPolicy: static" in second[3]


def test_kubelets_as_an_exporter_tells_them():
    exported = {
        one.metadata.name: NodeResourceTopology(
            metadata=one.metadata,
            attributes=(NamedValue("topologyManagerPolicy", "none"),),
            zones=(TopologyZone(name="node-0", type="Node"),),
        )
        for one in NODES
    }
    assert "have topologyManagerPolicy none" in only(look(known={}, topologies=exported, asked=WISH))[2]


def test_zones_that_contradict_their_node():
    """Node Feature Discovery 0.19.0 on NUMA nodes 0 and 2: an empty zone, and 15 CPUs of the node's 31."""
    zones = [nrt_zone(0, {"cpu": (16, 15, 1)}, {0: 10, 1: 20}), nrt_zone(1, {"cpu": 0})]
    where = [msgspec.structs.replace(one, status=NodeStatus(allocatable={"cpu": "31"})) for one in NODES[:2]]
    published = {one.metadata.name: nrt(zones, name=one.metadata.name) for one in where}
    found = [one for one in look(where, topologies=published, known={}) if one[1] == "zones"]
    first, second = (message for _, _, message, _ in found)
    assert first.startswith(
        "nodes n0, n1: NodeResourceTopology: zone node-1 has no capacity and no costs: the zones are"
    )
    assert "the zones have 15 cpu allocatable in all, and the node has 31" in second
    assert all(mend.startswith("topogate install --agent; or mend or restart the exporter") for *_, mend in found)


# --- the installation -------------------------------------------------------------------------------------------------


def renewed(at):
    return Lease(spec=LeaseSpec(holder_identity="a", lease_duration_seconds=15, renew_time=at.isoformat()))


def healthy():
    """As the API server has it after an installation that runs."""
    bundle = create(("topogate-webhook.topogate-system.svc",), NOW - timedelta(days=1), Lifetimes())
    found = Installation(Settings(), kubernetes="v1.36.3", configured=True)
    for wanted in render.objects():
        live = copy.deepcopy(wanted)
        if live["kind"] == "Deployment":
            live["status"] = {"availableReplicas": live["spec"].get("replicas", 1)}
        for webhook in live.get("webhooks", []):
            webhook["clientConfig"]["caBundle"] = base64.b64encode(bundle.ca_pem).decode()
        found.objects.append((wanted, live))
    found.secret = {"data": data_of(bundle)}
    found.lease = renewed(NOW)
    return found


def live(found, kind, name):
    return next(live for wanted, live in found.objects if (wanted["kind"], wanted["metadata"]["name"]) == (kind, name))


def judged(found, now=NOW):
    return [(str(one.weight), one.about, one.message, one.mend) for one in judge(found, now, "0.2.0")]


def test_a_healthy_installation_has_no_findings():
    assert judged(healthy()) == []


URL = "https://127.0.0.1:9443"


def beside():
    """An installation whose components run beside the cluster, and have not been started yet."""
    found = Installation(Settings(webhook_url=URL), kubernetes="v1.36.3", configured=True)
    for wanted in render.objects(render.InstallOptions(webhook_url=URL)):
        found.objects.append((wanted, copy.deepcopy(wanted)))
    found.secret = {}
    return found


def test_beside_a_cluster_nothing_is_restarted_in_it():
    found = beside()
    remove(found, "Namespace")
    mends = {message: mend for _, _, message, mend in judged(found)}
    assert len(mends) == 4, mends
    assert not [mend for mend in mends.values() if "deployment" in mend or "logs" in mend]
    assert (
        f"restart `topogate webhook` where {URL} leads to"
        in mends["Secret topogate-system/topogate-webhook-cert is empty"]
    )
    assert "start `topogate ungater`" in mends["no ungater leads, so nothing new is placed"]
    again = f"topogate install --out-of-cluster --webhook-url {URL}"
    assert next(mend for message, mend in mends.items() if message.startswith("missing")) == again
    assert found.install_command == again
    found = nodes.findings(NodesView(NODES, (), {}, {}, (), agent=False, install=again))
    assert next(found).mend == f"{again} --topology auto"


def test_a_webhook_beside_the_cluster_stays_there_where_the_settings_forgot_its_url():
    found = beside()
    found.settings = Settings()
    found.goes_by(live(found, "MutatingWebhookConfiguration", "topogate-webhook"))
    assert found.outside
    again = f"topogate install --out-of-cluster --webhook-url {URL}"
    assert judged(found)[0] == (
        *("error", "settings"),
        f"webhookUrl: expected {URL}, at which the API server calls the webhook, found nothing",
        again,
    )


def test_nothing_installed():
    found = only(judged(Installation(Settings(), kubernetes="v1.36.3")))
    assert found[2:] == ("Topogate is not installed in this cluster", "topogate install --topology auto")


def test_on_simulated_nodes_the_remedy_is_the_one_that_works_there():
    outside = f"topogate install --out-of-cluster --webhook-url {URL}"
    found = Installation(Settings(), kubernetes="v1.36.3", simulated=True)
    assert only(judged(found))[3] == f"{outside} --topology auto"
    found = healthy()
    found.simulated = True
    live(found, "MutatingWebhookConfiguration", "topogate-webhook")["webhooks"][0]["clientConfig"].pop("caBundle")
    assert only(judged(found))[3] == f"{outside}: pods on simulated nodes run nothing"


def remove(found, kind):
    found.objects = [(wanted, None if wanted["kind"] == kind else live) for wanted, live in found.objects]


def change(kind, name, change):
    def apply(found):
        change(live(found, kind, name))

    return apply


BROKEN = {
    "versions: Kubernetes v1.29.4 is older than 1.30: Topogate supports Kubernetes 1.30 and newer": lambda found: (
        setattr(found, "kubernetes", "v1.29.4")
    ),
    "versions: Kubernetes v1.36.3 does not serve ValidatingAdmissionPolicy": lambda found: setattr(
        found, "policies", False
    ),
    "installation: missing: PodDisruptionBudget": lambda found: remove(found, "PodDisruptionBudget"),
    "rbac: rights that differ from the installed: ClusterRole topogate-ungater (rules[0]": change(
        "ClusterRole", "topogate-ungater", lambda role: role["rules"][0].update(verbs=["get"])
    ),
    "rbac: rights that differ from the installed: ClusterRoleBinding topogate-webhook (subjects": change(
        "ClusterRoleBinding", "topogate-webhook", lambda one: one["subjects"][0].update(name="other")
    ),
    "webhook: the webhook is called for other objects": change(
        "MutatingWebhookConfiguration",
        "topogate-webhook",
        lambda one: one["webhooks"][0].update(failurePolicy="Ignore"),
    ),
    "policies: policies that differ": change(
        "ValidatingAdmissionPolicy", "topogate-pods", lambda one: one["spec"].update(failurePolicy="Ignore")
    ),
    "versions: kinds of another version": change(
        "CustomResourceDefinition",
        "workloads.topogate.dev",
        lambda one: one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].pop("spec"),
    ),
    "pods: no pod of topogate-webhook is ready, so objects with a request are refused": change(
        "Deployment", "topogate-webhook", lambda one: one.update(status={})
    ),
    "pods: 1 of 2 pods of topogate-ungater are ready": change(
        "Deployment", "topogate-ungater", lambda one: one.update(status={"availableReplicas": 1})
    ),
    "versions: topogate-ungater runs topogate:0.0.9": change(
        "Deployment",
        "topogate-ungater",
        lambda one: one["spec"]["template"]["spec"]["containers"][0].update(image="topogate:0.0.9"),
    ),
    "certificates: the webhook's configuration has no caBundle": change(
        "MutatingWebhookConfiguration", "topogate-webhook", lambda one: one["webhooks"][0].update(clientConfig={})
    ),
    "certificates: there is no Secret": lambda found: setattr(found, "secret", None),
    "certificates: Secret topogate-system/topogate-webhook-cert: tls.crt": lambda found: found.secret["data"].update(
        {"tls.crt": base64.b64encode(b"x").decode()}
    ),
    "certificates: the caBundle does not have the CA": lambda found: setattr(found, "secret", healthy().secret),
    "webhook: a Job with a request is refused: connection refused": lambda found: setattr(
        found, "trial", TrialResult(wrong="a Job with a request is refused: connection refused")
    ),
    "webhook: no Job could be tried": lambda found: setattr(
        found, "trial", TrialResult(unknown="no Job could be tried: no")
    ),
    "settings: requireQeue: unknown setting; the last good settings count": lambda found: setattr(
        found, "misconfigured", "requireQeue: unknown setting"
    ),
    "settings: ConfigMap topogate-system/topogate-config: data[config.yml]: nothing reads this key": lambda found: (
        setattr(found, "unread", tuple(unread_keys({"config.yaml": "", "config.yml": ""})))
    ),
    "ungater: no ungater leads": lambda found: setattr(found, "lease", None),
    "ungater: a has not renewed its lease for 61 s": lambda found: setattr(
        found, "lease", renewed(NOW - timedelta(seconds=61))
    ),
}


@pytest.mark.parametrize("told", BROKEN)
def test_each_thing_that_breaks_is_one_finding_with_a_remedy(told):
    found = healthy()
    BROKEN[told](found)
    answers = [f"{about}: {message}" for _, about, message, _ in judged(found)]
    assert any(answer.startswith(told) for answer in answers), answers
    assert all(mend for *_, mend in judged(found))
    assert len(answers) <= 2


def test_wrong_settings_come_first():
    found = healthy()
    found.denied, found.misconfigured = ["Lease topogate-ungater"], "requireQeue: unknown setting"
    assert [about for _, about, *_ in judged(found)] == ["settings", "rights"]


def test_what_follows_from_missing_objects_is_told_with_them_and_has_no_remedy_of_its_own():
    """As on a cluster where only the kinds were left."""
    found = healthy()
    found.objects = [
        (wanted, live if wanted["kind"] == "CustomResourceDefinition" else None) for wanted, live in found.objects
    ]
    found.secret = found.lease = None
    (_, about, message, mend) = only(judged(found))
    assert (about, mend) == ("installation", "topogate install")
    assert message.endswith("more, so no webhook answers, so nothing new is placed")


def test_what_follows_from_pods_that_are_not_ready_is_told_with_them():
    found = healthy()
    for name in ("topogate-webhook", "topogate-ungater"):
        live(found, "Deployment", name)["status"] = {}
    found.lease, found.trial = None, TrialResult(wrong="a Job with a request is refused")
    assert [about for _, about, *_ in judged(found)] == ["pods", "pods"]


class Refusing:
    """Stands in for the client: what the API server makes of the doctor's Job."""

    def __init__(self, answer):
        self.answer = answer

    async def create(self, _resource, job, namespace, *, dry_run):
        assert (namespace, dry_run) == ("default", True)
        if isinstance(self.answer, Exception):
            raise self.answer
        job["spec"]["template"]["spec"]["schedulingGates"] = self.answer
        return job


DENIED = 'admission webhook "job.topogate.dev" denied the request: in this cluster nothing is placed without a queue'


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ([{"name": "kueue.x-k8s.io/topology"}], ""),
        (Forbidden(403, message=DENIED), ""),
        ([{"name": "example.com/other"}], "wrong"),
        (ServerError(500, message='failed calling webhook "job.topogate.dev": connection refused'), "wrong"),
        (Forbidden(403, message="jobs is forbidden: User cannot create resource"), "unknown"),
        (Forbidden(403, message='admission webhook "of.somebody.else" denied the request'), "unknown"),
        (KubeTimeout("no answer"), "unknown"),
    ],
)
async def test_a_job_is_tried_in_a_dry_run_and_the_answer_tells_whether_the_webhook_works(answer, verdict):
    found = await try_webhook(Refusing(answer), "kueue.x-k8s.io", "default")
    assert [name for name, text in found._asdict().items() if text] == [verdict] * bool(verdict)


def test_certificates_that_end_soon_or_have_ended():
    found = healthy()
    (late,) = judged_certificates(found, timedelta(days=400))
    assert "tls.crt is valid from" in late
    (soon,) = judged_certificates(found, timedelta(days=320))
    assert "the serving certificate ends at 2027-11-22" in soon
    assert judged_certificates(found, timedelta(days=250)) == []


def judged_certificates(found, later):
    return [message for _, about, message, _ in judged(found, NOW + later) if about == "certificates"]


def test_what_may_not_be_read_is_unknown_and_not_wrong():
    found = healthy()
    found.denied = ["Secret topogate-webhook-cert", "Lease topogate-ungater"]
    found.secret = found.lease = None
    assert only(judged(found))[:2] == ("unknown", "rights")


def test_more_than_is_wanted_is_no_difference():
    assert differs({"a": [1]}, {"a": [1], "b": 2}) == ""
    assert differs({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}) == "a.b[0].c"
    assert differs({"a": [1]}, {"a": [1, 2]}) == "a"
    assert differs({"a": ""}, {}) == ""
