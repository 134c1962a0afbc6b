"""Victims on nodes, against every set of them: ``TOPOGATE_VICTIM_CASES`` says how many clusters (default 600)."""

import os

import pytest
from victim_cases import exhaustive, key_of, make_case

from engine.preemption.model import ChoiceRules, Strategy
from engine.preemption.roster import Roster
from engine.preemption.search import find

CASES = int(os.environ.get("TOPOGATE_VICTIM_CASES", "600"))
A_PART = 200


@pytest.mark.parametrize("first", range(0, CASES, A_PART))
@pytest.mark.parametrize("strategy", list(Strategy))
def test_no_set_of_victims_is_better_than_the_one_that_is_found(strategy, first):
    found = 0
    for seed in range(first, min(first + A_PART, CASES)):
        case = make_case(seed)
        choice = find(Roster(case.rooms), case.preemptor, ChoiceRules(strategy))
        assert key_of(choice, strategy, case.preemptor) == exhaustive(case, strategy), f"seed {seed}"
        found += choice is not None
    assert found > A_PART // 4
