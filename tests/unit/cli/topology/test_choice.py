"""`topogate install --topology`: the right levels by one word, wrong nesting named, and what bad words are told."""

from pathlib import Path

import msgspec
import pytest
import yaml

from cli.install.command import install
from cli.output import Failure
from cli.topology.choice import choose
from cli.topology.known import SOURCES, WORDS
from cli.topology.survey import Labelled, labelled, nesting
from crds.kinds.resource_flavor import ResourceFlavorSpec
from crds.levels import LevelNames
from kube.objects import Node, NodeStatus, ObjectMeta

ROOT = Path(__file__).resolve().parents[4]
HOST = "kubernetes.io/hostname"
RECORDED = sorted(path.stem for path in (ROOT / "tests/data/topologies").glob("*.yaml"))
LEVELS = {
    "gke": ("gke", ["block", "subblock", "host"], {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}),
    "gke-tpu": ("gke", ["block", "subblock"], {"node.kubernetes.io/instance-type": "ct6e-standard-4t"}),
    "eks": ("eks", ["layer-1", "layer-2", "layer-3"], {"node.kubernetes.io/instance-type": "p5.48xlarge"}),
    "eks-ultraserver": ("eks", ["layer-1", "layer-2", "layer-3", "ultraserver-id"], {"nvidia.com/gpu.present": "true"}),
    "oke": (
        "oke",
        ["hpc_island_id", "network_block_id", "local_block_id"],
        {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
    ),
    "coreweave": (
        "coreweave",
        ["fabric", "superpod", "leafgroup"],
        {"backend.coreweave.cloud/flavor": "infiniband"},
    ),
    "coreweave-gb200": (
        "coreweave",
        ["fabric", "superpod", "leafgroup", "nvlink.domain"],
        {"backend.coreweave.cloud/flavor": "infiniband"},
    ),
    "nebius": ("nebius", ["tier-2", "tier-1", "tier-0"], {"node.kubernetes.io/instance-type": "gpu-h200-sxm"}),
    "topograph": ("topograph", ["tier-1", "tier-0", "domain"], {"nvidia.com/gpu.present": "true"}),
    "nvl72": ("nvl72", ["gpu.clique"], {"nvidia.com/gpu.present": "true"}),
    "zone": ("zone", ["zone"], {"node.kubernetes.io/instance-type": "gpu.mi300x"}),
}


def recorded(name):
    told = yaml.safe_load((ROOT / "tests/data/topologies" / f"{name}.yaml").read_text())
    nodes = []
    for at in range(told["count"] + told["others"]):
        host = f"n{at:02}"
        labels = {"kubernetes.io/os": "linux", HOST: host}
        gpus = {"cpu": "96"}
        if at < told["count"]:
            labels |= told["common"] | {key: values[at] for key, values in told["labels"].items() if values[at]}
            gpus[told["resource"]] = "8"
        nodes.append(Node(metadata=ObjectMeta(name=host, labels=labels), status=NodeStatus(allocatable=gpus)))
    return labelled(nodes)


def ends(choice):
    return [level.key.rpartition("/")[2].removeprefix("network-node-") for level in choice.levels]


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("by", ["auto", "word"])
def test_one_word_makes_the_right_levels_of_what_nodes_carry(name, by):
    word, levels, group = LEVELS[name]
    found = choose(recorded(name), "auto" if by == "auto" else word)
    assert found.word == word
    if by == "auto":  # a level with one value divides nothing, and is none of `auto`
        named = choose(recorded(name), word)
        one_value = {level.key for level, one in zip(named.levels, named.found, strict=True) if len(one.values) == 1}
        levels = [level for level in levels if not any(key.endswith(level) for key in one_value)]
        assert all(any(key in line for line in found.left_out) for key in one_value)
    assert [end.removeprefix("gce-topology-").removeprefix("rdma.") for end in ends(found)] == [*levels, "hostname"]
    assert found.group == group
    assert not found.warnings
    spec = {"nodeLabels": found.group, "topology": {"levels": [one.key for one in found.levels], "names": found.names}}
    ResourceFlavorSpec.model_validate(spec)
    meant = LevelNames.read([("f", spec["topology"]["levels"], found.names)])
    assert {name: meant.level(name) for name in found.names} == found.names


def test_every_word_has_a_recorded_cluster_but_the_local_one():
    assert {word for word, *_ in LEVELS.values()} | {"local"} == {source.word for source in SOURCES}
    assert set(RECORDED) == set(LEVELS)
    assert len(RECORDED) >= 10


def moved(nodes, name, key, value):
    """The same nodes, one of them with another label ("": without it)."""
    return [
        Labelled(node.name, {k: v for k, v in {**node.labels, key: value}.items() if v}, node.accelerators)
        if node.name == name
        else node
        for node in nodes
    ]


SUBBLOCK, BLOCK = "cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"


def test_a_node_with_a_wrong_label_is_named():
    found = choose(moved(recorded("gke"), "n05", BLOCK, "c03e"), "auto")
    (warning,) = found.warnings
    assert f"1 of 4 domains of {SUBBLOCK} lie in several of {BLOCK}" in warning
    assert "s12 is in 7a1f, but with node n05 in c03e" in warning


def test_a_level_that_does_not_nest_is_left_out_and_named():
    crossed = recorded("topograph")
    for at, node in enumerate(crossed[:36]):
        crossed = moved(crossed, node.name, "accelerator.topograph.run/domain", f"nvl{at % 2}")
    found = choose(crossed, "auto")
    assert ends(found) == ["tier-0", "hostname"]
    assert any("accelerator.topograph.run/domain does not nest: 2 of 2 domains" in line for line in found.left_out)


def test_labels_the_wrong_way_round_are_refused_with_the_right_order():
    with pytest.raises(Failure, match=f"name the wider one first, as --topology {BLOCK},{SUBBLOCK}"):
        choose(recorded("gke"), f"{SUBBLOCK},{BLOCK}")
    assert nesting(recorded("gke"), SUBBLOCK, BLOCK).turned


def test_racks_named_alike_in_every_block_are_no_wrong_labels():
    nodes = [
        Labelled(f"b{b}r{r}h{h}", {"block": f"b{b}", "rack": f"r{r}", HOST: f"b{b}r{r}h{h}", "pool": "a"}, ("gpu",))
        for b in (1, 2)
        for r in (1, 2)
        for h in (1, 2)
    ]
    found = choose(nodes, "block,rack")
    assert [level.key for level in found.levels] == ["block", "rack", HOST]
    assert found.names == {"host": HOST}, "a label key without a prefix needs no name"
    assert not found.warnings
    assert not found.left_out
    assert found.notes == ["the same value of rack in another block is another domain"]
    assert [len(one.values) for one in found.domains] == [2, 4, 8], "rack r1 of each block is one of its own"
    assert [one.sizes for one in found.domains] == ["4", "2", "1"]


def grid(*, wide="block", narrow="rack", name="b{}-r{}-h{}"):
    """Racks that are named alike in every block."""
    return [
        Labelled(
            name.format(b, r, h), {wide: f"b{b}", narrow: f"r{r}", HOST: name.format(b, r, h), "pool": "a"}, ("x/gpu",)
        )
        for b in (1, 2, 3)
        for r in (1, 2, 3)
        for h in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("block", "rack"), ("example.com/row", "example.com/leaf"), ("cloud-provider.com/topology-block", "x.io/rack")],
)
def test_racks_before_blocks_are_refused_where_names_repeat(wide, narrow):
    nodes = grid(wide=wide, narrow=narrow)
    with pytest.raises(Failure) as failed:
        choose(nodes, f"{narrow},{wide}")
    assert f"name the wider one first, as --topology {wide},{narrow}" in str(failed.value)
    assert choose(nodes, f"{wide},{narrow}").levels[0].key == wide


def test_known_labels_have_their_order():
    wide, narrow = "cloud-provider.com/topology-block", "cloud-provider.com/topology-rack"
    with pytest.raises(Failure, match=f"--topology {wide},{narrow}"):
        choose(grid(wide=wide, narrow=narrow), f"{narrow},{wide}")


def test_names_do_not_overrule_what_nodes_carry():
    nodes = [
        Labelled(f"n{at}", {"block": f"b{at // 2}", "rack": f"r{at // 4}", HOST: f"n{at}", "pool": "a"}, ("gpu",))
        for at in range(8)
    ]
    assert [level.key for level in choose(nodes, "rack,block").levels] == ["rack", "block", HOST]


def test_where_neither_labels_nor_names_tell_the_wider_one_that_is_said():
    found = choose(grid(wide="a", narrow="b"), "a,b")
    assert "if a is the narrower of the two, name the wider one first, as --topology b,a" in found.notes[0]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("block", "b2", "node b1-r2-h3 seems to have a wrong block: b2/r2 has 5 nodes and b1/r2 has 3"),
        ("rack", "r3", "node b1-r2-h3 seems to have a wrong rack: b1/r3 has 5 nodes and b1/r2 has 3"),
        ("block", "bl", "node b1-r2-h3 seems to have a wrong block: bl/r2 has 1 node and b1/r2 has 3"),
    ],
)
def test_one_wrong_label_among_racks_named_alike_is_named(key, value, told):
    (warning,) = choose(moved(grid(), "b1-r2-h3", key, value), "block,rack").warnings
    assert warning == f"{told}, while every other domain has 4"


def test_where_names_do_not_tell_which_node_it_is_the_rack_is_named():
    nodes = grid(name="n{}{}{}")
    (warning,) = choose(moved(nodes, "n123", "block", "b2"), "block,rack").warnings
    assert warning.startswith("one of nodes n123, n221, n222, n223 and 1 more seems to have a wrong block")


@pytest.mark.parametrize("away", [("b1-r1-h1",), ("b1-r1-h1", "b2-r1-h1"), ("b1-r1-h1", "b2-r2-h1", "b3-r3-h4")])
def test_nodes_that_are_away_are_no_wrong_labels(away):
    assert not choose([node for node in grid() if node.name not in away], "block,rack").warnings


def test_one_small_rack_in_two_blocks_is_named():
    nodes = [
        Labelled(f"n{at}", {"block": f"b{at // 8}", "rack": f"r{at // 2}", HOST: f"n{at}", "pool": "a"}, ("gpu",))
        for at in range(16)
    ]
    (warning,) = choose(moved(nodes, "n5", "block", "b1"), "block,rack").warnings
    assert "r2 is in b1, but with node n4 in b0" in warning


@pytest.mark.parametrize(("missing", "taken"), [(1, False), (0, True)])
def test_less_than_95_percent_make_no_level(missing, taken):
    nodes = recorded("oke")
    for number in range(missing):
        nodes = moved(nodes, f"n{number:02}", "oci.oraclecloud.com/rdma.local_block_id", "")
    found = choose(nodes, "oke")
    assert (len(found.levels) == 4) is taken
    if missing:
        assert "is on 11 of 12 nodes (91%)" in found.left_out[0]
        assert "node n00 lacks it" in found.left_out[0]


def test_nodes_that_lack_a_level_are_named_where_nearly_all_have_it():
    found = choose(moved(recorded("topograph"), "n03", "fabric.topograph.run/tier-0", ""), "auto")
    assert ends(found)[:1] == ["tier-0"]
    assert any(line.startswith("node n03 will take no pods until labelled with fabric") for line in found.warnings)


def fabric(name):
    told = yaml.safe_load((ROOT / "tests/data/labels" / f"{name}.json").read_text())
    return labelled(msgspec.convert(told["items"], list[Node], strict=False))


def test_nodes_whose_switch_is_not_known_do_not_keep_auto_from_the_level_and_are_counted():
    """Topograph 1.0.0 writes `no-topology` on nodes of which its provider knows no switch: 4 of 10 here."""
    found = choose(fabric("no-topology"), "auto")
    assert ends(found) == ["tier-0", "hostname"]
    assert (found.found[0].carried, set(found.found[0].values)) == (6, {"leaf-a", "leaf-b"})
    (warning,) = found.warnings
    assert "nodes u0, u1, u2, u3 have fabric.topograph.run/tier-0=no-topology (4 of 10)" in warning
    assert "they count as unlabelled and take no pods" in warning


def test_one_dead_cable_is_told_where_it_divides_the_fabric_unevenly():
    """Two looks of Topograph at one fabric with a dead cable between leaf 4 and spine 2."""
    whole, divided = choose(fabric("dead-cable-1"), "auto"), choose(fabric("dead-cable-2"), "auto")
    assert (ends(whole), whole.warnings) == (["tier-0", "hostname"], [])
    assert any("tier-1 has one value (S-0000000000200000) and divides nothing" in line for line in whole.left_out)
    assert ends(divided) == ["tier-1", "tier-0", "hostname"]
    assert "a cable between switches may be dead" in divided.warnings[0]


def test_auto_keeps_the_narrowest_level_where_the_cluster_is_one_domain_of_each():
    one = [node for node in recorded("gke") if node.labels.get(SUBBLOCK) == "s12"]
    found = choose(one, "auto")
    assert ends(found) == ["gce-topology-host", "hostname"]
    alone = [Labelled(node.name, {HOST: node.name, BLOCK: "b1", SUBBLOCK: "s1"}, node.accelerators) for node in one]
    found = choose([Labelled(o.name, {**o.labels, "pool": "a"}, o.accelerators) for o in alone], "auto")
    assert ends(found) == ["gce-topology-subblock", "hostname"]
    assert found.left_out[0] == f"{BLOCK} has one value, as {SUBBLOCK} has"


def test_labels_by_hand_and_what_jobs_may_ask_for_them_by():
    found = choose(recorded("oke"), "topology.kubernetes.io/zone, oci.oraclecloud.com/rdma.network_block_id")
    assert [level.names for level in found.levels] == [("zone",), ("network-block", "block"), ("host",)]
    assert choose(recorded("zone"), f"topology.kubernetes.io/zone,{HOST}").names == {
        "zone": "topology.kubernetes.io/zone",
        "host": HOST,
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("azure", ["none of auto, gke, eks", f"say azure,{HOST}"]),
        ("eksx", ["did you mean eks?"]),
        ("gcp", ["did you mean gke?"]),
        ("AWS", ["did you mean eks?"]),
        ("", ["expected auto, gke"]),
        ("Not a key", ["neither auto, gke"]),
        ("zone,zone", ["zone is there twice"]),
        ("a/b", ["no node has a label a/b"]),
        (f"{HOST},topology.kubernetes.io/zone", ["may only be the last"]),
        ("gke", ["no node has any of the labels that gke sets", "topology.kubernetes.io/zone (3 domains)"]),
    ],
)
def test_words_that_mean_nothing_are_told_what_nodes_carry(text, told):
    with pytest.raises(Failure) as failed:
        choose(recorded("zone"), text)
    for part in told:
        assert part in str(failed.value)


@pytest.mark.parametrize("text", ["", " ", "azure", "Not a key", "zone,zone", "a,,b"])
def test_what_can_mean_nothing_is_refused_before_anybody_is_asked(text, monkeypatch):
    monkeypatch.setattr("kube.client.Client.connect", None)
    with pytest.raises(Failure, match="--topology"):
        install(topology=text)


def test_auto_on_nodes_without_any_known_label():
    plain = [Labelled(f"n{at}", {HOST: f"n{at}", "row": str(at // 2), "os": "linux"}, ("x/gpu",)) for at in range(6)]
    with pytest.raises(Failure, match=r"no known topology label.*row \(3 domains\).*--topology WIDE,NARROW"):
        choose(plain, "auto")
    with pytest.raises(Failure, match="there is no node"):
        choose([], "auto")
    assert choose(plain, f"row,{HOST}").group == {"os": "linux"}


def test_nodes_that_are_meant_may_be_named():
    nodes = recorded("zone")
    assert choose(nodes, "zone", {"node.kubernetes.io/instance-type": "gpu.mi300x"}).nodes == 9
    with pytest.raises(Failure, match="no node has these labels"):
        choose(nodes, "zone", {"pool": "none"})


def test_the_words_are_those_of_the_documentation():
    text = (ROOT / "docs/install.md").read_text()
    for word in WORDS:
        assert f"`{word}`" in text
