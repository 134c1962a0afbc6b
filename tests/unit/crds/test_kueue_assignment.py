"""Kueue's own form of a topology assignment: what its API documents, and what we would write is read the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.kueue.assignment import MOST_DOMAINS, decode, encode

BLOCK, RACK, HOST = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack", "kubernetes.io/hostname"


def test_the_examples_of_kueue_0_19_2_are_read():
    """apis/kueue/v1beta2/workload_types.go, Examples 1 to 4 of ``topologyAssignment``."""
    first = {
        "levels": [BLOCK, RACK],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [
                    {"individual": {"roots": ["block-1", "block-1"]}},
                    {"individual": {"roots": ["rack-1", "rack-2"]}},
                ],
                "podCounts": {"individual": [4, 2]},
            }
        ],
    }
    wanted = (BLOCK, RACK), [(("block-1", "rack-1"), 4), (("block-1", "rack-2"), 2)]
    assert decode(first) == wanted
    piece = {
        "domainCount": 2,
        "valuesPerLevel": [{"universal": "block-1"}, {"individual": {"prefix": "rack-", "roots": ["1", "2"]}}],
        "podCounts": {"individual": [4, 2]},
    }
    assert decode({"levels": [BLOCK, RACK], "slices": [piece]}) == wanted
    racks = [
        {
            "domainCount": count,
            "valuesPerLevel": [{"individual": {"prefix": f"block-1-rack-{rack}-node-", "roots": roots}}],
            "podCounts": {"universal": 1},
        }
        for rack, count, roots in ((1, 4, ["1", "2", "3", "4"]), (2, 2, ["1", "2"]))
    ]
    levels, domains = decode({"levels": [HOST], "slices": racks})
    assert levels == (HOST,)
    assert domains[0] == (("block-1-rack-1-node-1",), 1)
    assert domains[-1] == (("block-1-rack-2-node-2",), 1)
    assert len(domains) == 6


def test_the_form_of_v1beta1_is_read():
    stored = {"levels": [HOST], "domains": [{"values": ["n1"], "count": 2}, {"values": ["n2"], "count": 1}]}
    assert decode(stored) == ((HOST,), [(("n1",), 2), (("n2",), 1)])


def test_what_is_written_shares_what_is_common():
    written = encode([HOST], [(("n-1-a",), 2), (("n-2-a",), 2)])
    (piece,) = written["slices"]
    assert piece["valuesPerLevel"] == [{"individual": {"prefix": "n-", "suffix": "-a", "roots": ["1", "2"]}}]
    assert piece["podCounts"] == {"universal": 2}
    # Kueue's own example of ends that overlap (pkg/util/tas/tas_assignment.go).
    (piece,) = encode([HOST], [(("ababa",), 1), (("aba",), 2)])["slices"]
    assert piece["valuesPerLevel"] == [{"individual": {"prefix": "aba", "roots": ["ba", ""]}}]


@given(
    st.lists(
        st.tuples(st.tuples(st.text("ab-1", max_size=5), st.text("ab-1", max_size=5)), st.integers(1, 9)), max_size=9
    )
)
def test_what_is_written_is_read_the_same(domains):
    written = json.loads(json.dumps(encode([RACK, HOST], domains)))
    assert decode(written) == ((RACK, HOST), domains)
    for piece in written["slices"]:
        for one in piece["valuesPerLevel"]:
            assert len(one.get("individual", {"roots": [0] * piece["domainCount"]})["roots"]) == piece["domainCount"]


@pytest.mark.parametrize(
    "slices",
    [
        [{"domainCount": 1 << 31, "valuesPerLevel": [{"universal": "n"}], "podCounts": {"universal": 1}}],
        [{"domainCount": MOST_DOMAINS, "valuesPerLevel": [{"universal": "n"}], "podCounts": {"universal": 1}}] * 2,
        [{"domainCount": 1, "valuesPerLevel": [], "podCounts": {"universal": 1}}],
        [{"domainCount": 2, "valuesPerLevel": [{"individual": {"roots": ["1"]}}], "podCounts": {"universal": 1}}],
        [{"domainCount": 1, "valuesPerLevel": [{}], "podCounts": {"universal": 1}}],
        [{"domainCount": "1", "valuesPerLevel": [{"universal": "n"}], "podCounts": {"universal": 1}}],
        ["n1"],
    ],
    ids=["giant", "giant in pieces", "no levels", "too few roots", "no values", "a text", "no slice"],
)
def test_what_is_none_of_it_is_an_error_at_once(slices):
    with pytest.raises((KeyError, TypeError, ValueError, IndexError, AttributeError)):
        decode({"levels": [HOST], "slices": slices})
