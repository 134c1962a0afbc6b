from pathlib import Path

import pytest
import yaml

from agent import copies
from crds.constants import DEFAULT_DOMAIN, GPU_LINK, NAMESPACE, Keys
from crds.device_annotations import DEFAULT
from crds.kinds.cohort import Cohort
from crds.owner_templates import OWNERS, annotations_for_pods, labels_for_pods
from crds.request import WISHES
from crds.settings import Settings, from_mapping
from kube.connection.config import SERVICE_ACCOUNT
from kube.resources import resource_of
from manifests import render
from manifests.render import InstallOptions

POLICY = "topogate-pods"
MANIFESTS = Path(__file__).parents[3] / "manifests"


def of_kind(kind, options=None):
    return [obj for obj in render.objects(options) if obj["kind"] == kind]


def named(kind, name, options=None):
    (found,) = [obj for obj in of_kind(kind, options) if obj["metadata"]["name"] == name]
    return found


def text(options=None):
    return yaml.safe_dump_all(obj for obj in render.objects(options) if obj["kind"] != "CustomResourceDefinition")


def test_every_file_of_the_base_is_listed_and_every_object_can_be_applied():
    for folder in ("base", "agent"):
        listed = yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())["resources"]
        assert {path.name for path in (MANIFESTS / folder).iterdir()} == {*listed, "kustomization.yaml"} - {
            "../../crds"
        }
    objects = render.objects(InstallOptions(agent=True))
    assert len({(obj["kind"], obj["metadata"]["name"]) for obj in objects}) == len(objects)
    for obj in objects:
        assert resource_of(obj).namespaced is ("namespace" in obj["metadata"]), obj["metadata"]["name"]


def test_order_is_safe():
    kinds = [obj["kind"] for obj in render.objects(InstallOptions(agent=True))]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "MutatingWebhookConfiguration"
    assert max(i for i, kind in enumerate(kinds) if kind == "CustomResourceDefinition") < kinds.index("ServiceAccount")


def test_another_domain_and_namespace_leave_no_trace_of_the_default():
    options = InstallOptions(domain="topogate.dev", namespace="tg")
    rendered = text(options)
    kueues = (
        f"apiGroups:\n  - {DEFAULT_DOMAIN}\n  resources:\n  - workloadpriorityclasses\n"  # the group of Kueue itself
    )
    assert rendered.count(kueues) == 1
    assert DEFAULT_DOMAIN not in rendered.replace(kueues, "")
    assert NAMESPACE not in rendered
    assert "system:serviceaccount:tg:topogate-ungater" in rendered
    assert {obj["metadata"].get("namespace", "tg") for obj in render.objects(options)} == {"tg"}


@pytest.mark.parametrize("domain", [DEFAULT_DOMAIN, "topogate.dev"])
def test_rules_know_every_key(domain):
    keys = Keys(domain)
    (webhooks,) = of_kind("MutatingWebhookConfiguration", InstallOptions(domain=domain))
    policy = named("ValidatingAdmissionPolicy", POLICY, InstallOptions(domain=domain))
    for key in (*keys.requests, GPU_LINK):
        for webhook in webhooks["webhooks"][:3]:
            assert f"'{key}'" in webhook["matchConditions"][0]["expression"]
        assert f"'{key}'" in yaml.safe_dump(policy, width=10_000)
    variables = {one["name"]: one["expression"] for one in policy["spec"]["variables"]}
    for key in (*keys.requests, GPU_LINK):
        assert f"'{key}'" in variables["asks"]
    for key in (keys.gate, keys.workload, keys.pod_set):
        assert f"'{key}'" in yaml.safe_dump(policy, width=10_000)
    carries, _, changed = (each["expression"] for each in webhooks["webhooks"][0]["matchConditions"])
    changed_jobset = webhooks["webhooks"][1]["matchConditions"][1]["expression"]
    for key in WISHES:
        assert f"'{key}'" in carries
        assert f"'{key}'" in changed
        assert f"'{key}'" in changed_jobset
        assert f"'{key}'" in variables["asks"] + variables["wishes"]


def test_the_agent_has_a_namespace_of_its_own():
    assert not of_kind("DaemonSet")
    options = InstallOptions(namespace="tg", agent=True, image="example.com/topogate:1")
    (daemon,) = of_kind("DaemonSet", options)
    assert daemon["metadata"]["namespace"] == render.agent_namespace("tg") == "tg-agent"
    assert daemon["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/topogate:1"
    assert NAMESPACE not in text(options)
    levels = {
        obj["metadata"]["name"]: obj["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for obj in of_kind("Namespace", options)
    }
    assert levels == {"tg": "restricted", "tg-agent": "privileged"}
    for name in (POLICY, "topogate-agent", "topogate-agent-events"):
        policy = named("ValidatingAdmissionPolicy", name, options)
        assert "system:serviceaccount:tg-agent:topogate-agent" in yaml.safe_dump(policy, width=10_000)


def test_every_policy_is_bound_and_denies():
    options = InstallOptions(agent=True, default_hint=True)
    policies = {obj["metadata"]["name"]: obj for obj in of_kind("ValidatingAdmissionPolicy", options)}
    bindings = {obj["spec"]["policyName"]: obj for obj in of_kind("ValidatingAdmissionPolicyBinding", options)}
    assert policies.keys() == bindings.keys()
    for name in ("topogate-hints", "topogate-unread", "topogate-default-hint"):
        warns = policies.pop(name)["spec"]["failurePolicy"], bindings.pop(name)["spec"]["validationActions"]
        assert warns == ("Ignore", ["Warn"])
    assert {policy["spec"]["failurePolicy"] for policy in policies.values()} == {"Fail"}
    assert all(binding["spec"]["validationActions"] == ["Deny"] for binding in bindings.values())
    assert not any("paramKind" in policy["spec"] for policy in policies.values())  # stale after they were made anew


def test_the_kinds_that_hand_down_their_labels_are_the_same_everywhere():
    """The table of the code, the rules of the webhook, and those that the warnings pass over."""
    table = {(one.group, one.version, one.plural) for one in OWNERS}
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    (webhook,) = [one for one in configuration["webhooks"] if one["name"] == "owner.topogate.dev"]
    rules = [
        (group, version, plural)
        for rule in webhook["rules"]
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
        for plural in rule["resources"]
    ]
    assert table <= set(rules)
    assert {(group, plural) for group, _, plural in rules} == {(group, plural) for group, _, plural in table}
    text = yaml.safe_dump(named("ValidatingAdmissionPolicy", "topogate-unread"), width=10_000)
    assert all(f"{one.group}/{one.kind}" in text for one in OWNERS if one.group != "apps")
    hints = yaml.safe_dump(named("ValidatingAdmissionPolicy", "topogate-hints"), width=10_000)
    assert all(one.plural in hints for one in OWNERS)
    conditions = " ".join(one["expression"] for one in webhook["matchConditions"])
    for key in (*labels_for_pods(OWNERS[0], Keys()), *annotations_for_pods(Keys()), Keys().gated_by):
        assert conditions.count(f"'{key}'") == 2, key


def test_the_queue_called_default_is_put_in_where_the_api_server_takes_the_policy():
    assert not of_kind("MutatingAdmissionPolicy")
    options = InstallOptions(default_queue=True, default_hint=True, domain="example.com")
    (policy,), (binding,) = (of_kind(f"MutatingAdmissionPolicy{end}", options) for end in ("", "Binding"))
    assert (policy["spec"]["failurePolicy"], policy["spec"]["paramKind"]["kind"]) == ("Ignore", "LocalQueue")
    assert binding["spec"]["paramRef"] == {"name": "default", "parameterNotFoundAction": "Allow"}
    text = yaml.safe_dump(policy, width=10_000)
    assert "'example.com/queue-name'" in text
    assert "kueue.x-k8s.io/queue-name" not in text
    # The warning where it is not taken has the same conditions, and all kinds that can be queued are among them.
    hint = named("ValidatingAdmissionPolicy", "topogate-default-hint", options)
    for part in ("matchConditions", "matchConstraints", "paramKind"):
        assert hint["spec"][part] == policy["spec"][part]
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    taken = {plural for rule in rules for plural in rule["resources"]}
    assert taken == {"pods", "jobs", "jobsets", *(one.plural for one in OWNERS if one.queues)}
    assert all(f"'{one.group}/{one.kind}'" in text for one in OWNERS)


def test_the_policy_names_the_device_annotations_of_the_settings():
    def devices(config=""):
        policy = named("ValidatingAdmissionPolicy", render.DEVICE_POLICY, InstallOptions(config=config))
        (found,) = [one["expression"] for one in policy["spec"]["variables"] if one["name"] == "devices"]
        return yaml.safe_load(found)

    assert devices() == devices("domain: kueue.x-k8s.io\n") == [one.key for one in DEFAULT]
    rules = [{"resource": "a/b", "key": key} for key in ("x.y/z", "UPPER_CASE", "x.y/z")]
    assert devices(yaml.safe_dump({"deviceAnnotations": rules})) == ["UPPER_CASE", "x.y/z"]
    assert devices("deviceAnnotations: []\n") == []


def test_the_agent_writes_nothing_on_its_node():
    (daemon,) = of_kind("DaemonSet", InstallOptions(agent=True))
    pod = daemon["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    containers = {container["name"]: container for container in pod["containers"]}
    assert containers.keys() == {"agent", "kubelet-files"}
    for container in containers.values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    on_host = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    assert on_host == {"sys", "kubelet", "pod-resources"}
    mounts = {
        name: {mount["name"]: mount for mount in container["volumeMounts"]} for name, container in containers.items()
    }
    for own in mounts.values():
        assert all(mount["readOnly"] for volume, mount in own.items() if volume in on_host)
    container, copier = containers["agent"], containers["kubelet-files"]
    variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    known = {name: value for name, value in variables.items() if name.startswith("TOPOGATE_")}
    from_mapping({}, env=known)  # every variable is one that there is
    assert {name.removeprefix("TOPOGATE_").lower() for name in known} <= Settings.model_fields.keys()
    assert variables["TOPOGATE_AGENT_KUBELET_DIRECTORY"] == mounts["agent"]["copies"]["mountPath"] == copier["args"][1]
    socket = variables["TOPOGATE_AGENT_POD_RESOURCES_SOCKET"]
    assert socket == mounts["agent"]["pod-resources"]["mountPath"] + "/kubelet.sock"


def test_who_has_the_agents_token_does_not_see_the_kubelets_credentials():
    (daemon,) = of_kind("DaemonSet", InstallOptions(agent=True))
    pod = daemon["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {
        container["name"]: {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        for container in pod["containers"]
    }
    assert pod["automountServiceAccountToken"] is False
    assert [name for name, own in mounts.items() if "account" in own] == ["agent"]
    assert mounts["agent"]["account"] == str(SERVICE_ACCOUNT)
    sources = [source for source in volumes["account"]["projected"]["sources"] if "serviceAccountToken" in source]
    assert len(sources) == 1
    assert [name for name, own in mounts.items() if "kubelet" in own] == ["kubelet-files"]
    seen = {volumes[name]["hostPath"]["path"] for name in mounts["agent"] if "hostPath" in volumes[name]}
    assert seen == {"/sys", "/var/lib/kubelet/pod-resources"}
    assert mounts["kubelet-files"].keys() == {"kubelet", "nothing", "copies"}
    assert mounts["kubelet-files"]["nothing"] == mounts["kubelet-files"]["kubelet"] + "/pods"
    most = int(volumes["copies"]["emptyDir"]["sizeLimit"].removesuffix("Mi")) << 20
    assert most >= 2 * len(copies.NAMES) * copies.MOST_BYTES  # each old and new at once


def test_the_webhook_is_closed_and_narrow():
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    *of_jobs, of_settings = configuration["webhooks"]
    assert (of_settings["name"], of_settings["failurePolicy"]) == ("settings.topogate.dev", "Ignore")
    for webhook in of_jobs:
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["reinvocationPolicy"] == "IfNeeded"
    for webhook in configuration["webhooks"]:
        assert webhook["sideEffects"] == "None"
        assert webhook["matchConditions"]
        assert "caBundle" not in webhook["clientConfig"]


def test_out_of_cluster():
    options = InstallOptions(webhook_url="https://127.0.0.1:9443/")
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        assert of_kind(kind)
        assert not of_kind(kind, options)
    (configuration,) = of_kind("MutatingWebhookConfiguration", options)
    urls = [webhook["clientConfig"] for webhook in configuration["webhooks"]]
    paths = ("mutate-job", "mutate-jobset", "mutate-pod", "mutate-owner", "check-settings")
    assert urls == [{"url": f"https://127.0.0.1:9443/{path}"} for path in paths]


def test_image():
    images = {
        container["image"]
        for deployment in of_kind("Deployment", InstallOptions(image="example.com/topogate:1"))
        for container in deployment["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"example.com/topogate:1"}


def test_the_settings_file_is_valid():
    for options in (InstallOptions(), InstallOptions(domain="topogate.dev", namespace="tg")):
        (config,) = of_kind("ConfigMap", options)
        settings = from_mapping(yaml.safe_load(config["data"]["config.yaml"]))
        assert (settings.domain, settings.namespace) == (options.domain, options.namespace)


def test_components_are_locked_down():
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"livenessProbe", "readinessProbe", "resources"} <= container.keys()


def test_nobody_gets_more_than_a_verb():
    """No wildcards; secrets by name and in one namespace only; Workload status for the ungater alone."""
    writers = {"create", "update", "patch", "delete", "deletecollection"}
    options = InstallOptions(agent=True)
    for role in (*of_kind("ClusterRole", options), *of_kind("Role", options)):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            if "secrets" in rule["resources"]:
                assert role["kind"] == "Role"
                assert rule["resourceNames"]
            if "workloads/status" in rule["resources"] and writers & set(rule["verbs"]):
                assert role["metadata"]["name"] == "topogate-ungater"


def test_samples_ask_for_levels_of_the_sample_flavor_by_their_names():
    flavor = yaml.safe_load((MANIFESTS / "samples" / "flavor.yaml").read_text())
    topology = flavor["spec"]["topology"]
    assert sorted(topology["names"].values()) == sorted(topology["levels"])
    names = {path.name for path in (MANIFESTS / "samples").iterdir()} - {"flavor.yaml", "queues.yaml", "cohorts.yaml"}
    assert {"required.yaml", "preferred.yaml", "unconstrained.yaml", "indexed.yaml"} <= names
    for name in names:
        job = yaml.safe_load((MANIFESTS / "samples" / name).read_text())
        (value,) = [
            value for key, value in job["spec"]["template"]["metadata"]["annotations"].items() if key in Keys().requests
        ]
        assert value in (*topology["names"], "true")


def test_sample_cohorts_are_one_tree_with_quota_of_the_sample_flavor():
    flavor = yaml.safe_load((MANIFESTS / "samples" / "flavor.yaml").read_text())["metadata"]["name"]
    made = list(yaml.safe_load_all((MANIFESTS / "samples" / "cohorts.yaml").read_text()))
    parents = {one["metadata"]["name"]: one["spec"].get("parentName") for one in made}
    assert parents == {"org": None, "research": "org", "product": "org"}
    for group in (group for one in made for group in one["spec"].get("resourceGroups", ())):
        assert [one["name"] for one in group["flavors"]] == [flavor]
    # The API server's own schema is asked in tests/integration/test_crds.py; the models say the same of types.
    assert [Cohort.from_wire(one).to_wire() for one in made] == made


def test_sample_queues_have_quota_of_the_sample_flavor_and_serve_the_sample_jobs():
    flavor = yaml.safe_load((MANIFESTS / "samples" / "flavor.yaml").read_text())["metadata"]["name"]
    made = list(yaml.safe_load_all((MANIFESTS / "samples" / "queues.yaml").read_text()))
    cluster = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "ClusterQueue"}
    local = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "LocalQueue"}
    assert {one["clusterQueue"] for one in local.values()} == set(cluster)
    for spec in cluster.values():
        ((quotas,),) = [group["flavors"] for group in spec["resourceGroups"]]
        assert quotas["name"] == flavor
    job = yaml.safe_load((MANIFESTS / "samples" / "queued.yaml").read_text())
    assert job["metadata"]["labels"][Keys().queue_name] in local
