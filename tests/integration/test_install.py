"""``topogate install`` and ``uninstall`` on a real API server of their own, called as the command calls them."""

import asyncio
import contextlib
import io
import json
import shlex
import subprocess
import sys

import pytest
import yaml
from support.kueue_kinds import bare_workloads
from support.trusted import trusted

from cli.install import command, waiting
from cli.install.installation import FIELD_MANAGER
from cli.output import Failure, OutputFormat
from crds.constants import DEFAULT_DOMAIN, FINALIZER, NAMESPACE, Keys
from crds.settings import CONFIG_MAP
from kube.client import Client
from kube.errors import NotFound
from kube.replicas import REPLICATED
from kube.resources import NAMESPACES, NODES, resource_of
from localcluster import Fleet, LocalCluster, add_nodes, wait_ready
from manifests import render

pytestmark = pytest.mark.cluster

K = Keys()
URL = "https://127.0.0.1:9443"
OUTSIDE = {"out_of_cluster": True, "webhook_url": URL}
AGENT_NAMESPACE = render.agent_namespace(NAMESPACE)
HOMES = {"webhook": NAMESPACE, "ungater": NAMESPACE, "agent": AGENT_NAMESPACE}


@pytest.fixture(scope="module")
def own():
    """A control plane with two nodes, on which the Deployments' pods run, and one that makes them worth a wait.

    Our namespace is there already, made by somebody else, and so stays: each deletion of one takes the controller
    manager five seconds. One test has a namespace of its own deleted.
    """

    async def nodes(cluster):
        async with await Client.connect(str(cluster.kubeconfig)) as client:
            fleet = Fleet(blocks=1, racks=1, hosts=2)
            await add_nodes(client, fleet)
            await wait_ready(client, fleet.node_names(), timeout=30)
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "not-simulated"}})
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    with LocalCluster() as cluster:
        asyncio.run(nodes(cluster))
        yield cluster


@pytest.fixture
def kubectl(own):
    def run(*arguments, stdin=None, fails=False):
        line = [own.kubectl, "--kubeconfig", own.kubeconfig, *arguments]
        done = subprocess.run(line, input=stdin, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


@pytest.fixture
def install(own, capsys):
    def run(**arguments):
        with trusted(own.kubectl, own.kubeconfig) if arguments.get("wait") else contextlib.nullcontext():
            command.install(kubeconfig=str(own.kubeconfig), **{"wait": False} | arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def uninstall(own, capsys):
    def run(**arguments):
        command.uninstall(kubeconfig=str(own.kubeconfig), **{"yes": True} | arguments)
        return capsys.readouterr()

    return run


@pytest.fixture
def clean(there, uninstall):
    """Nothing installed."""
    if there():
        uninstall(delete_crds=True, yes=True)


@pytest.fixture
def installed(install):
    """Installed, without Deployments: a namespace without pods goes quickly."""
    return install(**OUTSIDE)


@pytest.fixture
def there(own):
    """Lists the objects of an installation that exist."""

    async def ask(options):
        found = []
        async with await Client.connect(str(own.kubeconfig)) as client:
            for obj in render.objects(options):
                if obj["metadata"]["name"] == NAMESPACE:
                    continue
                with contextlib.suppress(NotFound):
                    await client.get(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))
                    found.append((obj["kind"], obj["metadata"]["name"]))
        return found

    return lambda options=None: asyncio.run(ask(options))


def get(kubectl, *what):
    return json.loads(kubectl("get", *what, "-o", "json"))


def outcomes(printed):
    """Object -> what happened to it."""
    lines = [
        line.split() for line in printed.splitlines() if "/" in line.split()[0] and not line.startswith("Topogate")
    ]
    return {words[0]: " ".join(words[words.index("in") + 2 if "in" in words else 1 :]) for words in lines}


def test_install_makes_every_object_and_waits_for_the_pods(clean, install, kubectl, there):
    printed = install(wait=True, timeout=60.0, image="topogate:other")
    wanted = render.InstallOptions(default_queue=True)  # the API server is new enough
    assert len(outcomes(printed)) == len(render.objects(wanted)) == len(there(wanted)) + 1
    assert outcomes(printed).pop(f"namespace/{NAMESPACE}") == "kept"
    assert set(outcomes(printed).values()) == {"created", "kept"}
    for deployment in get(kubectl, "deployments", "-n", NAMESPACE)["items"]:
        assert deployment["status"]["availableReplicas"] == deployment["spec"]["replicas"] == 2
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "topogate:other"
    assert "flavor" in printed


def test_installing_again_changes_nothing(installed, install):
    assert set(outcomes(install(**OUTSIDE)).values()) == {"unchanged", "kept"}


@pytest.mark.parametrize("folders", [("base",), ("base", "agent")])
def test_kustomize_makes_the_same_objects(kubectl, folders):
    built = [obj for each in folders for obj in yaml.safe_load_all(kubectl("kustomize", f"manifests/{each}"))]
    by_name = {(obj["kind"], obj["metadata"]["name"]): obj for obj in built}
    rendered = render.objects(render.InstallOptions(agent="agent" in folders))
    assert by_name == {(obj["kind"], obj["metadata"]["name"]): obj for obj in rendered}


def test_the_agent_comes_stays_and_goes(clean, install, kubectl, there):
    """Asked for once it stays through upgrades, until somebody does not want it any more."""
    daemons = ("daemonsets", "-n", AGENT_NAMESPACE)
    install(agent=True, wait=True, timeout=60.0, image="topogate:other")
    (daemon,) = get(kubectl, *daemons)["items"]
    assert daemon["status"]["numberReady"] == 2
    assert daemon["spec"]["template"]["spec"]["containers"][0]["image"] == "topogate:other"
    install()
    (daemon,) = get(kubectl, *daemons)["items"]
    assert daemon["spec"]["template"]["spec"]["containers"][0]["image"] == "topogate:0.2.0"
    printed = outcomes(install(agent=False))
    assert printed[f"daemonset/{render.AGENT}"] == "deleted"
    assert {name for kind, name in there(render.InstallOptions(agent=True)) if name == render.AGENT} == set()
    assert "deleted" not in outcomes(install()).values()
    assert get(kubectl, *daemons)["items"] == []


def test_what_somebody_changed_is_put_right_and_the_ca_stays(installed, install, kubectl):
    name = ("mutatingwebhookconfiguration", "topogate-webhook")
    patch = {
        "webhooks": [{"name": "job.topogate.dev", "failurePolicy": "Ignore", "clientConfig": {"caBundle": "Cg=="}}]
    }
    kubectl("patch", *name, "--type", "strategic", "-p", json.dumps(patch))
    changed = outcomes(install(**OUTSIDE))
    assert {key for key, outcome in changed.items() if outcome == "configured"} == {"/".join(name)}
    (webhook,) = (one for one in get(kubectl, *name)["webhooks"] if one["name"] == "job.topogate.dev")
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["clientConfig"]["caBundle"] == "Cg=="


def test_settings_and_certificates_survive_an_upgrade(installed, install, kubectl):
    config = f"# ours\ndomain: {DEFAULT_DOMAIN}\nnamespace: {NAMESPACE}\nwebhookUrl: {URL}\nungateConcurrency: 8\n"
    kubectl(
        "patch",
        "configmap",
        CONFIG_MAP,
        "-n",
        NAMESPACE,
        "--patch",
        json.dumps({"data": {"config.yaml": config}}),
    )
    kubectl(
        "patch",
        "secret",
        "topogate-webhook-cert",
        "-n",
        NAMESPACE,
        "--patch",
        json.dumps({"data": {"tls.crt": "Cg=="}}),
    )
    install(**OUTSIDE)
    assert get(kubectl, "configmap", CONFIG_MAP, "-n", NAMESPACE)["data"]["config.yaml"] == config
    assert get(kubectl, "secret", "topogate-webhook-cert", "-n", NAMESPACE)["data"] == {"tls.crt": "Cg=="}
    broken = json.dumps({"data": {"config.yaml": "domian: x\n"}})
    kubectl("patch", "configmap", CONFIG_MAP, "-n", NAMESPACE, "--patch", broken)
    with pytest.raises(Failure, match=r"ConfigMap topogate-system/topogate-config.*domian"):
        install(**OUTSIDE)
    kubectl("delete", "configmap", CONFIG_MAP, "-n", NAMESPACE)


def test_the_domain_of_an_installation_stays(clean, install, kubectl):
    install(domain="topogate.dev", **OUTSIDE)
    assert set(outcomes(install(**OUTSIDE)).values()) == {"unchanged", "kept"}
    policy = get(kubectl, "validatingadmissionpolicy", "topogate-pods")
    assert "topogate.dev/topology'" in json.dumps(policy["spec"])
    assert DEFAULT_DOMAIN not in json.dumps(policy["spec"])
    with pytest.raises(Failure, match=r'installed with domain "topogate.dev".*uninstall'):
        install(domain="other.example.com")


def test_beside_kueue_its_domain_is_refused(clean, install, kubectl, there):
    kubectl("create", "-f", "-", stdin=json.dumps(bare_workloads("v1")))
    with pytest.raises(Failure, match=r"workloads\.kueue\.x-k8s\.io exists.*--domain topogate\.dev"):
        install()
    assert there() == []
    role = "clusterrole/topogate-ungater-kueue"
    assert outcomes(install(domain="topogate.dev", **OUTSIDE))[role] == "created"
    assert outcomes(install(**OUTSIDE))[role] == "unchanged"
    assert outcomes(install(kueue=False, **OUTSIDE))[role] == "deleted"
    kubectl("delete", "crd", "workloads.kueue.x-k8s.io")
    assert role not in outcomes(install(**OUTSIDE))


def test_authenticated_metrics_stay_until_they_are_taken_back(clean, install, kubectl):
    role = "clusterrole/topogate-metrics-authentication"
    assert role not in outcomes(install(**OUTSIDE))
    assert outcomes(install(metrics_authentication=True, **OUTSIDE))[role] == "created"
    assert set(outcomes(install(**OUTSIDE)).values()) == {"unchanged", "kept"}
    printed = outcomes(install(metrics_authentication=False, **OUTSIDE))
    gone = {name for name, outcome in printed.items() if outcome == "deleted"}
    binding = "clusterrolebinding/topogate-metrics-authentication"
    assert gone == {role, binding, "clusterrole/topogate-metrics-reader"}
    assert role not in outcomes(install(**OUTSIDE))


def test_the_policy_follows_device_annotations_that_somebody_set(clean, install, kubectl):
    """After the settings were edited, another install lets the ungater write what they name."""
    install(**OUTSIDE)
    config = yaml.safe_dump(
        {
            **yaml.safe_load(get(kubectl, "configmap", CONFIG_MAP, "-n", NAMESPACE)["data"]["config.yaml"]),
            "deviceAnnotations": [{"resource": "nvidia.com/gpu", "key": "nvidia.com/use-gpuuuid", "value": "id"}],
        }
    )
    patch = json.dumps({"data": {"config.yaml": config}})
    kubectl("patch", "configmap", CONFIG_MAP, "-n", NAMESPACE, "--patch", patch)
    assert outcomes(install(**OUTSIDE))["validatingadmissionpolicy/topogate-ungater-pods"] == "configured"
    policy = get(kubectl, "validatingadmissionpolicy", "topogate-ungater-pods")
    (devices,) = [one["expression"] for one in policy["spec"]["variables"] if one["name"] == "devices"]
    assert devices == "['nvidia.com/use-gpuuuid']"
    kubectl("delete", "configmap", CONFIG_MAP, "-n", NAMESPACE)


def test_dry_run_changes_nothing(clean, install, kubectl, there):
    printed = install(dry_run=True, namespace="new")
    assert set(outcomes(printed).values()) == {"created (dry run)"}
    assert there() == []


@pytest.mark.parametrize("output", [OutputFormat.YAML, OutputFormat.JSON])
def test_print_only(clean, install, kubectl, output, there):
    printed = install(output=output, namespace="elsewhere")
    documents = list(yaml.safe_load_all(printed)) if output is OutputFormat.YAML else [json.loads(printed)]
    objects = [obj for one in documents for obj in one.get("items", [one])]
    assert objects == render.objects(render.InstallOptions(namespace="elsewhere"))
    assert there() == []


def test_what_is_printed_is_what_kubectl_and_kustomize_make_of_it(clean, install, kubectl, tmp_path):
    printed = install(output=OutputFormat.YAML, **OUTSIDE)
    namespace, rest = printed.split("---\n", 1)  # which somebody else made, and goes on to own
    assert "kind: Namespace" in namespace
    kubectl("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "-f", "-", stdin=rest)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    found = outcomes(install(**OUTSIDE))
    # What is printed is for any API server, and older ones have no such policies.
    more = [f"{kind}/topogate-default-queue" for kind in ("mutatingadmissionpolicy", "mutatingadmissionpolicybinding")]
    assert [found.pop(name) for name in more] == ["created", "created"]
    assert set(found.values()) == {"unchanged", "kept"}
    usage = kubectl("explain", "localqueue.status.flavorsUsage.resources.borrowed")
    assert "The quantity that is borrowed from the cohort above." in usage
    assert "The usage of each resource." in kubectl("explain", "clusterqueue.status.flavorsReservation.resources")
    assert "APIVersion defines" in kubectl("explain", "workload.apiVersion")
    (tmp_path / "all.yaml").write_text(printed)
    (tmp_path / "kustomization.yaml").write_text("resources: [all.yaml]\n")
    wanted = [obj for one in yaml.safe_load_all(printed) for obj in one.get("items", [one])]
    built = {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(kubectl("kustomize", tmp_path))}
    assert built == {(obj["kind"], obj["metadata"]["name"]): obj for obj in wanted}


def test_out_of_cluster_takes_the_place_of_the_deployments(install, kubectl):
    install()
    printed = install(out_of_cluster=True, webhook_url=URL)
    assert outcomes(printed)["deployment/topogate-webhook"] == "deleted"
    assert get(kubectl, "deployments,services,pdb", "-n", NAMESPACE)["items"] == []
    webhooks = get(kubectl, "mutatingwebhookconfiguration", "topogate-webhook")["webhooks"]
    paths = ("mutate-job", "mutate-jobset", "mutate-pod", "mutate-owner", "check-settings")
    assert [hook["clientConfig"] for hook in webhooks] == [{"url": f"{URL}/{path}"} for path in paths]
    config = yaml.safe_load(get(kubectl, "configmap", CONFIG_MAP, "-n", NAMESPACE)["data"]["config.yaml"])
    assert config["webhookUrl"] == URL
    assert set(outcomes(install(out_of_cluster=True, webhook_url=URL)).values()) == {"unchanged", "kept"}
    install()
    webhooks = get(kubectl, "mutatingwebhookconfiguration", "topogate-webhook")["webhooks"]
    assert all("url" not in hook["clientConfig"] for hook in webhooks)
    install(**OUTSIDE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"out_of_cluster": True}, "come together"),
        ({"webhook_url": URL}, "come together"),
        ({"out_of_cluster": True, "webhook_url": "http://x"}, "https://HOST:PORT"),
        ({"domain": "Not a domain"}, "command line: domain"),
        ({"namespace": "Not_A_Name"}, "command line: namespace"),
    ],
)
def test_wrong_arguments_are_named(install, arguments, message):
    with pytest.raises(Failure, match=message):
        install(**arguments)


def test_a_refusal_names_the_object(own, install, kubectl, tmp_path):
    kubectl("create", "serviceaccount", "nobody", "-n", "default")
    token = kubectl("create", "token", "nobody", "-n", "default").strip()
    config = yaml.safe_load(own.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file = tmp_path / "nobody"
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(Failure, match=r"(?i)forbidden.*clusterrolebindings"):
        command.install(kubeconfig=str(file))


# --- rights ----------------------------------------------------------------------------------------------------------


def rules(kubectl, user, namespace, *groups):
    """(verb, resource.group, name) that RBAC gives the user in the namespace, by the API server's own account."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "metadata": {"creationTimestamp": None},
        "spec": {"namespace": namespace},
    }
    as_groups = [part for group in groups for part in ("--as-group", group)]
    answer = json.loads(
        kubectl(
            "create", "--validate=false", "-f", "-", "-o", "json", "--as", user, *as_groups, stdin=json.dumps(review)
        )
    )
    return {
        (verb, f"{resource}.{group}".rstrip("."), name)
        for rule in answer["status"]["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def own_rules(kubectl, component, namespace):
    """What the component's account may do beyond what every account may."""
    groups = ("system:serviceaccounts", "system:authenticated")
    everybody = rules(kubectl, "system:serviceaccount:default:default", namespace, *groups)
    return rules(kubectl, account(component), namespace, *groups) - everybody


def account(component):
    return f"system:serviceaccount:{HOMES[component]}:topogate-{component}"


def spread(verbs, resource, name=""):
    return {(verb, resource, name) for verb in verbs.split()}


WATCH = "list watch"
DEVICES = ("deviceclasses", "devicetaintrules", "resourceslices", "resourceclaims", "resourceclaimtemplates")
WEBHOOK_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
RIGHTS = {
    "webhook": spread(WATCH, "resourceflavors.topogate.dev").union(
        spread(WATCH, "localqueues.topogate.dev"),
        spread(WATCH, "clusterqueues.topogate.dev"),
        *(
            spread("get patch", f"{kind}.admissionregistration.k8s.io", "topogate-webhook")
            for kind in WEBHOOK_CONFIGURATIONS
        ),
    ),
    "ungater": spread(WATCH, "resourceflavors.topogate.dev").union(
        spread(WATCH, "cohorts.topogate.dev"),
        spread(WATCH, "clusterqueues.topogate.dev"),
        spread(WATCH, "localqueues.topogate.dev"),
        spread(WATCH, "workloadpriorityclasses.topogate.dev"),
        spread(WATCH, "workloadpriorityclasses.kueue.x-k8s.io"),
        spread(f"get {WATCH} create patch delete", "workloads.topogate.dev"),
        *(
            spread("patch", f"{kind}/status.topogate.dev")
            for kind in ("workloads", "cohorts", "clusterqueues", "localqueues", "resourceflavors")
        ),
        spread(f"{WATCH} patch", "jobs.batch"),
        spread("patch", "jobs/status.batch"),
        spread(f"{WATCH} patch", "jobsets.jobset.x-k8s.io"),
        spread(WATCH, "leaderworkersets.leaderworkerset.x-k8s.io"),
        spread(WATCH, "controllerrevisions.apps"),
        *(spread(WATCH, f"{resource.plural}.{resource.group}") for resource, _ in REPLICATED),
        spread("update", "jobs/finalizers.batch"),
        spread(f"{WATCH} patch delete", "pods"),
        spread("create", "pods/eviction"),
        spread(WATCH, "poddisruptionbudgets.policy"),
        spread(WATCH, "nodes"),
        spread(WATCH, "namespaces"),
        spread(WATCH, "limitranges"),
        spread(WATCH, "runtimeclasses.node.k8s.io"),
        spread(WATCH, "flextopos.topogate.dev"),
        spread(WATCH, "noderesourcetopologies.topology.node.k8s.io"),
        spread(WATCH, "priorityclasses.scheduling.k8s.io"),
        spread(WATCH, "podgroups.scheduling.k8s.io"),
        spread(WATCH, "persistentvolumeclaims"),
        spread(WATCH, "persistentvolumes"),
        spread(WATCH, "storageclasses.storage.k8s.io"),
        *(spread(WATCH, f"{kind}.storage.k8s.io") for kind in ("csinodes", "csidrivers", "csistoragecapacities")),
        *(spread(WATCH, f"{kind}.resource.k8s.io") for kind in DEVICES),
        spread("list create patch", "events.events.k8s.io"),
    ),
    "agent": spread("get create patch", "flextopos.topogate.dev").union(
        spread("patch", "flextopos/status.topogate.dev"),
        spread("get create patch", "noderesourcetopologies.topology.node.k8s.io"),
        spread("list watch patch", "pods"),
        spread("get", "nodes"),
        spread("create patch", "events.events.k8s.io"),
    ),
}
HOME = {
    "agent": set(),
    "webhook": spread("get patch", "secrets", "topogate-webhook-cert").union(
        spread("get", "pods"),
        spread("create patch", "events.events.k8s.io"),
        spread("get", "configmaps", "topogate-config"),
    ),
    "ungater": spread("create", "leases.coordination.k8s.io").union(
        spread("get update", "leases.coordination.k8s.io", "topogate-ungater"),
        spread("get patch", "configmaps", "topogate-config"),
    ),
}


@pytest.mark.parametrize("component", sorted(RIGHTS))
def test_an_account_may_do_exactly_what_is_listed(installed, install, kubectl, component):
    if component == "agent":
        install(agent=True, **OUTSIDE)
    assert own_rules(kubectl, component, "default") == RIGHTS[component]
    assert own_rules(kubectl, component, HOMES[component]) == RIGHTS[component] | HOME[component]


QUESTIONS = [
    (("webhook", "get", "secrets/topogate-webhook-cert", NAMESPACE), True),
    (("webhook", "get", "secrets/another", NAMESPACE), False),
    (("webhook", "create", "secrets", NAMESPACE), False),
    (("webhook", "get", "secrets/topogate-webhook-cert", "kube-system"), False),
    (("webhook", "delete", "pods", "default"), False),
    (("webhook", "patch", "pods", "default"), False),
    (("ungater", "patch", "pods", "default"), True),
    (("ungater", "get", "secrets", NAMESPACE), False),
    (("ungater", "create", "pods", "default"), False),
    (("ungater", "patch", "nodes", "default"), False),
    (("ungater", "patch", "resourceflavors", "default"), False),
]


def test_the_authorizer_agrees(installed, kubectl):
    for (component, verb, what, namespace), allowed in QUESTIONS:
        kubectl("auth", "can-i", "-q", verb, what, "-n", namespace, "--as", account(component), fails=not allowed)


USER_RIGHTS = [
    ("view", "list", "workloads", True),
    ("view", "list", "localqueues", True),
    ("view", "list", "workloadpriorityclasses", True),
    ("admin", "create", "workloadpriorityclasses", False),
    ("view", "patch", "workloads", False),
    ("edit", "patch", "workloads", True),
    ("edit", "patch", "workloads/status", False),
    ("edit", "create", "workloads", False),
    ("edit", "create", "localqueues", False),
    ("admin", "create", "localqueues", True),
    ("admin", "delete", "workloads", True),
    ("admin", "update", "workloads/status", False),
    ("admin", "create", "clusterqueues", False),
    ("view", "list", "cohorts", True),
    ("admin", "create", "cohorts", False),
    ("admin", "patch", "cohorts", False),
]


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_rights_of_people(installed, kubectl, role):
    for obj in (
        ("serviceaccount", role),
        ("rolebinding", role, "--clusterrole", role, "--serviceaccount", f"default:{role}"),
    ):
        made = kubectl("create", *obj, "-n", "default", "--dry-run=client", "-o", "yaml")
        kubectl("apply", "-f", "-", stdin=made)
    given = rules(kubectl, f"system:serviceaccount:default:{role}", "default")
    for of, verb, resource, allowed in USER_RIGHTS:
        if of == role:
            assert ((verb, f"{resource}.topogate.dev", "") in given) is allowed, (verb, resource)


# --- uninstall -------------------------------------------------------------------------------------------------------


def flavor(finalizers=()):
    return {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "tas", "finalizers": list(finalizers)},
        "spec": {},
    }


def gated(kind, name):
    spec = {
        "schedulingGates": [{"name": K.gate}],
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}],
    }
    metadata = {"annotations": {K.required[0]: "rack"}}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name} | metadata, "spec": spec}
    template = {"metadata": metadata, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"suspend": True, "template": template},
    }


def test_uninstall_leaves_nothing(clean, install, uninstall, kubectl, there):
    own = {"namespace": "tg"}
    assert outcomes(install(**own, **OUTSIDE))["namespace/tg"] == "created"
    kubectl("create", "-f", "-", stdin=json.dumps(flavor([FINALIZER])))
    uninstall(**own, delete_crds=True, yes=True)
    assert there(render.InstallOptions(**own)) == []
    roles = json.loads(kubectl("get", "--raw", "/apis/rbac.authorization.k8s.io/v1/clusterroles"))["items"]
    assert not [role for role in roles if FIELD_MANAGER in json.dumps(role["metadata"].get("managedFields", []))]
    assert "Nothing of Topogate was found" in uninstall(**own, delete_crds=True, yes=True).out
    assert "created" in outcomes(install(**own, **OUTSIDE)).values()
    uninstall(**own, delete_crds=True, yes=True)


def test_a_webhook_that_nobody_serves_is_not_called(clean, install, kubectl, there, monkeypatch):
    """Else every Job with a request would be refused while the image cannot be pulled."""

    async def never(*_, **__):
        raise Failure("Deployment topogate-system/topogate-webhook was not ready after 120 s")

    monkeypatch.setattr(waiting, "wait_available", never)
    with pytest.raises(Failure, match=r"was not ready.*The webhook is not called yet, so no Job is refused"):
        install(wait=True)
    assert get(kubectl, "mutatingwebhookconfigurations")["items"] == []
    monkeypatch.undo()
    assert outcomes(install(wait=True))["mutatingwebhookconfiguration/topogate-webhook"] == "created"


def test_data_is_kept_unless_asked_for(clean, install, uninstall, kubectl, there):
    install(**OUTSIDE)
    kubectl("create", "-f", "-", stdin=json.dumps(flavor()))
    uninstall()
    assert {kind for kind, _ in there()} == {"CustomResourceDefinition"}
    assert kubectl("get", "rf", "tas", "-o", "name")
    install(**OUTSIDE)
    assert kubectl("get", "rf", "tas", "-o", "name")


def test_who_says_no_or_nothing_deletes_nothing(installed, uninstall, there, monkeypatch, capsys):
    before = there()
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    with pytest.raises(Failure, match="nothing was deleted"):
        uninstall(delete_crds=True, yes=False)
    assert "what is stored in them: " in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(Failure, match="nobody answered; --yes"):
        uninstall(yes=False)
    assert there() == before


def test_a_namespace_of_somebody_else_stays(installed, uninstall, kubectl, there):
    uninstall(delete_crds=True, yes=True)
    assert there() == []
    assert get(kubectl, "namespace", NAMESPACE)["status"]["phase"] == "Active"


def test_pods_that_would_wait_for_ever_are_named_and_can_be_ungated(clean, install, uninstall, kubectl, there):
    install(**OUTSIDE)  # nobody serves that
    kubectl("delete", "mutatingwebhookconfiguration", "topogate-webhook")
    kubectl("create", "-f", "-", stdin=json.dumps(gated("Pod", "waiting")))
    kubectl("create", "-f", "-", stdin=json.dumps(gated("Job", "maker")))
    queued = gated("Job", "queued")
    queued["metadata"]["labels"] = {K.queue_name: "training"}
    kubectl("create", "-f", "-", stdin=json.dumps(queued))
    before = there()
    for dry_run, part in ((True, "would remove"), (False, "removes any more")):
        shown = uninstall(dry_run=dry_run)
        for said in (
            f"1 pod behind the gate, which nothing {part}",
            "default/waiting",
            "--ungate",
            "1 unfinished Job ",
            "kubectl -n default patch job queued -p",
        ):
            assert said in shown.err
        assert "default/maker" in shown.err
        assert ("deleted (dry run)" in shown.out) is dry_run
        assert (there() == before) is dry_run
    answer = json.loads(uninstall(ungate=True, output=OutputFormat.JSON).out)
    assert answer["ungated"] == ["default/waiting"]
    assert answer["left"]["gating_jobs"] == ["default/maker"]
    assert "schedulingGates" not in get(kubectl, "pod", "waiting")["spec"]
    command = shlex.split(next(line for line in shown.err.splitlines() if "patch job queued" in line))
    kubectl(*command[1:])
    resumed = get(kubectl, "job", "queued")["spec"]
    assert not resumed["suspend"]
    assert "schedulingGates" not in resumed["template"]["spec"]
    kubectl("delete", "pod/waiting", "job/maker", "job/queued", "--wait=false")
