"""`topogate doctor` names the nodes that have one host name label."""

from cli.doctor.hostnames import shared_host_names
from cli.topology.survey import labelled
from kube.objects import Node, ObjectMeta

HOST = "kubernetes.io/hostname"


def nodes(**hosts):
    return labelled([Node(metadata=ObjectMeta(name=name, labels={HOST: host})) for name, host in hosts.items()])


def test_nodes_with_one_host_name_are_named_with_what_mends_it():
    (found,) = shared_host_names(nodes(a="ubuntu", b="ubuntu", c="third"))
    assert found.message == f"nodes a, b have the same label {HOST}=ubuntu, so neither takes pods"
    drained = "kubectl drain --ignore-daemonsets b"
    assert found.mend == f"{drained} && kubectl label node --overwrite b {HOST}=b && kubectl uncordon b"


def test_three_are_none_of_them():
    (found,) = shared_host_names(nodes(a="u", b="u", c="u"))
    assert found.message.endswith("so none of them takes pods")


def test_the_node_that_is_called_so_takes_pods_and_the_other_is_mended():
    (found,) = shared_host_names(nodes(victim="victim", zoe="victim"))
    assert found.message == f"nodes victim, zoe have the same label {HOST}=victim, so only victim takes pods"
    assert " label node --overwrite zoe " in found.mend


def test_nothing_is_said_where_each_has_its_own():
    assert not [*shared_host_names(nodes(a="a", b="b"))]
