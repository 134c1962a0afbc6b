"""Where objects come from: files, folders, stdin; and what a cluster has."""

import gzip
import io
import os
import sys

import msgspec
import pytest
import yaml
from support.migrating import configuration, of_kueue

from cli.migrate.source_objects import KueueObjectsRead, list_resources, read_cluster, read_files
from cli.output import Failure
from kube.errors import NotFound, Status

QUEUE = of_kueue("ClusterQueue", "q", {})
LOCAL = of_kueue("LocalQueue", "l", {"clusterQueue": "q"}, namespace="team")


def titles(read: KueueObjectsRead):
    return [str(one) for one in read.found]


@pytest.fixture
def write(tmp_path):
    def written(name, *bodies, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or yaml.safe_dump_all(bodies))
        return str(path)

    return written


def test_files_lists_gzip_and_stdin_are_read(write, tmp_path, monkeypatch):
    one = write("one.yaml", QUEUE, {"apiVersion": "v1", "kind": "List", "items": [LOCAL]})
    packed = tmp_path / "two.json.gz"
    packed.write_bytes(gzip.compress(msgspec.json.encode(of_kueue("Topology", "t", {}))))
    text = yaml.safe_dump(of_kueue("Cohort", "c", {})).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    read = read_files([one, str(packed), "-"])
    assert sorted(titles(read)) == ["ClusterQueue q", "Cohort c", "LocalQueue team/l", "Topology t"]
    assert {str(one): one.place.rpartition("/")[2] for one in read.found}["LocalQueue team/l"] == "one.yaml:9"


def test_a_folder_is_read_in_order_without_what_is_hidden_or_elsewhere(write, tmp_path):
    write("home/b/one.yml", LOCAL)
    write("home/a.yaml", QUEUE)
    write("home/.git/x.yaml", of_kueue("ClusterQueue", "hidden"))
    write("home/.x.yaml", of_kueue("ClusterQueue", "hidden"))
    write("home/notes.txt", text="kueue")
    outside = write("outside.yaml", of_kueue("ClusterQueue", "outside"))
    (tmp_path / "home" / "link.yaml").symlink_to(outside)
    (tmp_path / "home" / "circle").symlink_to(tmp_path / "home")
    os.mkfifo(tmp_path / "home" / "pipe.yaml")
    assert titles(read_files([str(tmp_path / "home")])) == ["ClusterQueue q", "LocalQueue team/l"]


def test_what_cannot_be_read_in_a_folder_is_told_and_refused_where_it_speaks_of_kueue(write, tmp_path):
    write("home/a.yaml", QUEUE)
    write("home/chart.yaml", text="a: {{ .Values.x }}\n")
    write("home/broken.yaml", text="apiVersion: kueue.x-k8s.io/v1beta2\nkind: {{ .Values.kind }}\n")
    read = read_files([str(tmp_path / "home")])
    assert titles(read) == ["ClusterQueue q"]
    assert [(row.name.rpartition("/")[2], row.outcome) for row in read.rows] == [
        ("broken.yaml", "refused"),
        ("chart.yaml", "left"),
    ]
    assert read.rows[0].why.startswith("line 2, column")
    with pytest.raises(Failure, match=r"broken\.yaml: line 2"):
        read_files([str(tmp_path / "home" / "broken.yaml")])


def test_the_same_object_twice_is_one_and_another_of_its_name_an_error(write):
    one, two = write("one.yaml", QUEUE, LOCAL), write("two.yaml", QUEUE)
    assert titles(read_files([one, two])) == ["ClusterQueue q", "LocalQueue team/l"]
    three = write("three.yaml", of_kueue("ClusterQueue", "q", {"stopPolicy": "Hold"}))
    with pytest.raises(Failure, match=r"ClusterQueue q is there twice and differs: in .*one\.yaml .* and in .*three"):
        read_files([one, three])
    other = write("other.yaml", LOCAL | {"metadata": {"name": "l", "namespace": "other"}, "spec": {}})
    assert titles(read_files([one, other])) == ["ClusterQueue q", "LocalQueue team/l", "LocalQueue other/l"]


def test_a_configuration_is_found_alone_and_in_its_config_map(write):
    text = yaml.safe_dump(configuration(fairSharing={}))
    data = {"controller_manager_config.yaml": text, "other": "x"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kueue-manager-config"}, "data": data}
    (inside,) = read_files([write("map.yaml", body)]).found
    (alone,) = read_files([write("plain.yaml", configuration(fairSharing={}))]).found
    assert inside.body == alone.body
    assert inside.file == "ConfigMap kueue-manager-config, key controller_manager_config.yaml"


class Server:
    """Answers of an API server by path, for what is read of Kueue."""

    def __init__(self, versions, lists, objects):
        self.versions, self.lists, self.objects = versions, lists, objects

    async def raw(self, _method, path):
        if path == "/apis/kueue.x-k8s.io" and self.versions:
            return msgspec.json.encode({"versions": [{"version": version} for version in self.versions]})
        for version, kinds in self.versions.items():
            if path == f"/apis/kueue.x-k8s.io/{version}":
                return msgspec.json.encode(
                    {
                        "resources": [
                            {"name": plural, "kind": kind, "namespaced": kind == "LocalQueue", "verbs": verbs}
                            for plural, kind, verbs in kinds
                        ]
                    }
                )
        raise missing()

    async def list(self, resource):
        return self.lists[resource.version, resource.plural]

    async def get(self, resource, name, _namespace=None):
        try:
            return self.objects[resource.plural, name]
        except KeyError:
            raise missing() from None


def missing():
    return NotFound(404, Status(message="not found"), "GET")


VERBS = ["get", "list"]
NEW = [("clusterqueues", "ClusterQueue", VERBS), ("clusterqueues/status", "ClusterQueue", ["get"])]
OLD = [("clusterqueues", "ClusterQueue", VERBS), ("workloads", "Workload", VERBS)]
QUEUES = {("v1beta2", "clusterqueues"): [{"metadata": {"name": "q"}, "spec": {}}]}


async def test_kinds_are_read_in_the_newest_version_and_workloads_not_at_all():
    server = Server({"v1beta2": NEW, "v1beta1": OLD}, QUEUES, {})
    assert [(one.version, one.kind) for one in await list_resources(server)] == [
        ("v1beta2", "ClusterQueue"),
        ("v1beta1", "Workload"),
    ]
    read = await read_cluster(server)
    assert [(str(one), one.api_group, one.place) for one in read.found] == [
        ("ClusterQueue q", "kueue.x-k8s.io", "the cluster")
    ]
    assert [(row.kind, row.outcome) for row in read.rows] == [("Workload", "left")]
    assert read.no_configuration == "not found in kueue-system; Kueue's defaults are assumed (--kueue-namespace)"


async def test_a_cluster_without_kueue_is_told():
    with pytest.raises(Failure, match="choose another --context, or give files with -f"):
        await read_cluster(Server({}, {}, {}))


async def test_the_configuration_comes_from_the_deployment_with_its_gates():
    spec = {
        "volumes": [{"name": "x", "configMap": {"name": "kueue-manager-config"}}, {"name": "y", "secret": {}}],
        "containers": [{"args": ["--config=/c.yaml", "--feature-gates=PartialAdmission=false,MultiKueue=true"]}],
    }
    deployment = {"spec": {"template": {"spec": spec}}}
    text = yaml.safe_dump(configuration(featureGates={"MultiKueue": False}))
    objects = {
        ("deployments", "kueue-controller-manager"): deployment,
        ("configmaps", "kueue-manager-config"): {"data": {"controller_manager_config.yaml": text}},
    }
    read = await read_cluster(Server({"v1beta2": NEW}, QUEUES, objects))
    assert read.found[-1].body["featureGates"] == {"MultiKueue": True, "PartialAdmission": False}
    assert read.no_configuration == ""


@pytest.mark.parametrize(
    "spec",
    [
        "&a {x: *a}",
        "{a: &a [1, 2], b: &b [*a, *a, *a], c: [*b, {x: &c [*c]}]}",
        "{" + ", ".join(f"k{at}: &k{at} [{', '.join([f'*k{at - 1}' if at else 'x'] * 10)}]" for at in range(9)) + "}",
        "{k0: &k0 {x: 1}, "
        + ", ".join(f"k{at}: &k{at} {{<<: [{', '.join([f'*k{at - 1}'] * 10)}]}}" for at in range(1, 9))
        + "}",
    ],
    ids=["a circle", "a circle further down", "ten times ten times", "merged ten times ten times"],
)
def test_aliases_that_come_to_no_end_are_refused_at_once(write, spec):
    path = write("a.yaml", text=f"kind: ClusterQueue\napiVersion: kueue.x-k8s.io/v1beta2\nspec: {spec}\n")
    with pytest.raises(Failure, match=r"aliases \(\*name\) repeat too much"):
        read_files([path])


def test_aliases_that_repeat_a_little_are_read(write):
    text = "kind: ClusterQueue\napiVersion: kueue.x-k8s.io/v1beta2\nmetadata: {name: a, labels: &l {a: b}, x: *l}\n"
    (one,) = read_files([write("a.yaml", text=text)]).found
    assert one.body["metadata"]["x"] == {"a": "b"}


def test_stdin_that_is_named_twice_is_refused():
    with pytest.raises(Failure, match="stdin can be read once"):
        read_files(["-", "-"])
