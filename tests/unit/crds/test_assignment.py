import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.assignment import SLICES_LIMIT, decode, encode
from crds.kinds.workload import TopologyAssignment

LEVELS = ("block", "rack", "kubernetes.io/hostname")
values = st.text(st.sampled_from("ab-1"), min_size=1, max_size=4)
domains = st.lists(st.tuples(st.tuples(values, values, values), st.integers(1, 9)), max_size=30)


@given(domains, st.booleans())
def test_both_forms_keep_domains_counts_and_order(wanted, grouped):
    stored = json.loads(json.dumps(encode(LEVELS, wanted, limit=-1 if grouped else 1000)))
    assert ("groups" in stored) is grouped
    assert decode(stored) == (LEVELS, wanted)


def test_few_domains_are_written_out_and_many_are_grouped():
    few = [(("b", "r", f"n{i}"), 1) for i in range(SLICES_LIMIT)]
    assert encode(LEVELS, few)["slices"][0] == {
        "nodeLabels": dict(zip(LEVELS, ("b", "r", "n0"), strict=True)),
        "count": 1,
    }
    many = [*few, (("b", "r", "last"), 2)]
    assert [group["values"] for group in encode(LEVELS, many)["groups"]] == [["b", "r"]]


def test_one_level_and_a_stored_object_without_levels():
    assert decode(encode(("rack",), [(("r1",), 3)], limit=0)) == (("rack",), [(("r1",), 3)])
    old = {"slices": [{"nodeLabels": {"rack": "r1", "block": "b"}, "count": 2}]}
    assert decode(old, ("block", "rack")) == (("block", "rack"), [(("b", "r1"), 2)])
    assert decode({"slices": []}) == ((), [])
    one = {"slices": [{"nodeLabels": {"rack": "r1"}, "count": 2}]}
    assert decode(one) == (("rack",), [(("r1",), 2)])


def test_an_assignment_without_levels_whose_slices_have_several_labels_is_not_read():
    """The schema lets it be stored, and the API server sorts the keys of maps: a host may come before its rack."""
    labels = {"block": "b", "kubernetes.io/hostname": "n1", "rack": "r1"}
    with pytest.raises(ValueError, match="without levels, whose slices have several labels"):
        decode({"slices": [{"nodeLabels": labels, "count": 2}]})


def test_20000_hosts_take_a_small_part_of_an_object():
    hosts = [((f"block-{i // 512}", f"rack-{i // 16}", f"node-{i:05}.cluster.example.com"), 8) for i in range(20_000)]
    stored = encode(LEVELS, hosts)
    assert len(json.dumps(stored)) < 1_572_864 / 4
    TopologyAssignment.model_validate(stored)
