"""What LocalQueues used over time. Example E: half-life 600 s, sampling 300 s, 8 GPUs held from 0 to 1,200 s."""

import random
from math import inf

import pytest

from queueing.model import UseRules
from queueing.queues.over_time.fair_use import FairUse

GPUS = {("h100", "nvidia.com/gpu"): 8}
EXACT = UseRules(half_life=600.0)
SAMPLED = UseRules(half_life=600.0, sampling=300.0)


def gpus(count, flavor="h100"):
    return {(flavor, "nvidia.com/gpu"): count}


def holding(use, part, key, amounts, at=0.0):
    """One is admitted at a time, as the cycle and the writer of the admission tell it."""
    use.advance_to(at)
    use.charge_use(part, key, amounts, admitted=True)
    use.settle_use(key)


def curve(rules, looks=(), read=FairUse.score_of):
    """Example E, read at these times; ``-``: just before the end at 1,200 s."""
    use = FairUse(rules)
    holding(use, "team/a", "job", GPUS)
    found = {}
    for at in sorted({*looks, 0, 300, 600, 900, 1200, 1500, 1800}):
        use.advance_to(float(at))
        found[at] = read(use, "team/a")
        if at == 1200:
            use.release_use("job")
            found["after"] = read(use, "team/a")
    return found


def test_with_sampling_the_numbers_are_those_of_kueue_0_19_2():
    found = curve(SAMPLED)
    assert [round(found[at], 3) for at in (0, 300, 600, 900, 1200)] == [2.343, 4.0, 5.172, 6.0, 6.586]
    assert [round(found[at], 3) for at in (1500, 1800)] == [4.657, 3.293]
    assert found["after"] == found[1200], "what ended counts until the next sample"


def test_without_sampling_each_change_counts_at_once_and_exactly():
    consumed = curve(EXACT, read=lambda use, part: use.consumed_by(part).get("nvidia.com/gpu", 0.0))
    assert [round(consumed[at], 3) for at in (0, 300, 600, 900, 1200)] == [0.0, 2.343, 4.0, 5.172, 6.0]
    assert [round(consumed[at], 3) for at in (1500, 1800)] == [4.243, 3.0]
    score = curve(EXACT)
    assert [round(score[at], 3) for at in (0, 300, 600, 900, 1200)] == [2.343, 4.0, 5.172, 6.0, 6.586]
    assert [round(score["after"], 3), *(round(score[at], 3) for at in (1500, 1800))] == [4.243, 3.0, 2.121]


@pytest.mark.parametrize("rules", [EXACT, SAMPLED])
def test_looks_in_between_change_nothing(rules):
    seldom, often = curve(rules), curve(rules, looks=range(0, 1800, 7))
    assert {at: often[at] for at in seldom} == pytest.approx(seldom, abs=2e-6)


def test_the_weight_of_a_local_queue_divides_its_score_and_0_is_last():
    use = FairUse(EXACT)
    for part, weight, consumed in (("a", 2000, 6.0), ("b", 1000, 2.0), ("none", 0, 0.0)):
        use.set_weight(part, weight)
        use.restore_use(part, {"nvidia.com/gpu": consumed * 2**0.5}, 0.0)  # so that the score looks 300 s ahead
    use.charge_use("b", "job", GPUS, admitted=True)
    assert [round(use.score_of(part), 3) for part in ("a", "b")] == [3.0, 4.343]
    assert use.score_of("none") == inf, "0 divided by 0 is not first"


def test_a_core_counts_as_one_a_byte_as_nothing_and_flavors_add_up():
    use = FairUse(UseRules(half_life=1.0, weights={"nvidia.com/gpu": 10.0}))
    asked = {("a", "cpu"): 1500, ("b", "cpu"): 500, ("a", "memory"): 1 << 40, **gpus(3)}
    use.charge_use("q", "job", asked, admitted=True)
    assert use.score_of("q") == pytest.approx(32.0), "with such a half-life it is what is held now"
    weighed = FairUse(UseRules(half_life=1.0, weights={"memory": 2.0, "cpu": 0.0, "nvidia.com/gpu": 0.0}))
    weighed.charge_use("q", "job", asked, admitted=True)
    assert weighed.score_of("q") == pytest.approx(2 * (1 << 40))


@pytest.mark.parametrize("rules", [EXACT, SAMPLED])
@pytest.mark.parametrize("admitted", [True, False])
def test_what_is_granted_and_released_in_one_moment_leaves_nothing(rules, admitted):
    use = FairUse(rules)
    use.advance_to(100.0)
    use.charge_use("q", "job", GPUS, admitted=admitted)
    assert use.score_of("q") == pytest.approx(2.343, abs=1e-3)
    use.charge_use("q", "job", gpus(4), admitted=admitted)
    assert use.score_of("q") == pytest.approx(2.343 / 2, abs=1e-3), "replaced, and not added"
    use.release_use("job")
    use.release_use("job")
    assert use.score_of("q") == 0.0


def test_one_whose_victims_are_not_gone_counts_for_the_order_and_consumes_nothing():
    use = FairUse(EXACT)
    use.charge_use("q", "job", GPUS, admitted=False)
    use.advance_to(6000.0)
    assert use.score_of("q") == pytest.approx(2.343, abs=1e-3)
    assert use.consumed_by("q") == {}


def test_the_same_use_in_many_workloads_counts_as_in_one():
    one, many = FairUse(EXACT), FairUse(EXACT)
    holding(one, "q", "job", GPUS)
    for number in range(8):
        holding(many, "q", f"job-{number}", gpus(1, f"flavor-{number % 3}"))
    for use in (one, many):
        use.advance_to(777.0)
    assert many.score_of("q") == one.score_of("q") > 0


def test_a_clock_that_goes_back_changes_nothing():
    use = FairUse(EXACT)
    holding(use, "q", "job", GPUS, at=1000.0)
    use.advance_to(1300.0)
    before = use.score_of("q")
    use.advance_to(900.0)
    assert (use.now, use.score_of("q")) == (1300.0, before)


def test_one_that_changes_its_local_queue_takes_along_what_it_holds_and_not_what_it_used():
    use = FairUse(EXACT)
    holding(use, "a", "job", GPUS)
    use.advance_to(600.0)
    use.charge_use("b", "job", GPUS, admitted=True)
    assert use.consumed_by("a") == {"nvidia.com/gpu": pytest.approx(4.0)}
    assert use.score_of("b") == pytest.approx(2.343, abs=1e-3)


def test_after_a_restart_what_still_runs_is_counted_as_if_nothing_had_happened():
    through = FairUse(EXACT)
    through.set_weight("q", 1000)
    holding(through, "q", "ended", gpus(2))
    holding(through, "q", "early", gpus(4), at=100.0)
    through.advance_to(500.0)
    through.release_use("ended")
    stored = through.consumed_by("q"), 500.0
    holding(through, "q", "late", gpus(1), at=700.0)
    through.advance_to(1000.0)
    again = FairUse(EXACT)
    again.advance_to(1000.0)
    again.set_weight("q", 1000)
    again.restore_use("q", *stored)
    again.charge_use("q", "early", gpus(4), admitted=True, since=100.0)
    again.charge_use("q", "late", gpus(1), admitted=True, since=700.0)
    assert again.consumed_by("q") == pytest.approx(through.consumed_by("q"))
    assert again.score_of("q") == pytest.approx(through.score_of("q"), abs=1e-6)


def test_after_a_restart_what_was_stored_counts_and_not_what_is_held_now():
    # Kueue before 12783 made a history of what was in use at the moment.
    use = FairUse(SAMPLED)
    use.advance_to(1000.0)
    use.restore_use("q", {"nvidia.com/gpu": 5.0}, 900.0)
    use.charge_use("q", "job", GPUS, admitted=True, since=0.0)
    assert use.score_of("q") == 5.0
    use.advance_to(1200.0)
    assert use.score_of("q") == pytest.approx(8 + (5 - 8) * 0.5**0.5)


def test_a_time_of_tomorrow_in_what_is_stored_keeps_nothing_from_falling():
    use = FairUse(EXACT)
    use.advance_to(1000.0)
    use.restore_use("q", {"nvidia.com/gpu": 8.0}, 90_000.0)
    use.advance_to(1600.0)
    assert use.consumed_by("q") == {"nvidia.com/gpu": pytest.approx(4.0)}


def test_a_local_queue_that_is_made_again_is_as_heavy_as_it_was_for_four_half_lives():
    use = FairUse(EXACT)
    use.set_weight("q", 1000)
    holding(use, "q", "job", GPUS)
    use.advance_to(600.0)
    use.release_use("job")
    use.forget_part("q")
    use.set_weight("q", 1000)
    assert use.consumed_by("q") == {"nvidia.com/gpu": pytest.approx(4.0)}
    use.forget_part("q")
    use.advance_to(600.0 + 4 * 600.0)
    use.set_weight("idle", 1000)
    use.forget_part("idle")
    assert use.score_of("q") == 0.0
    assert use.consumed_by("q") == {}


def test_use_of_workloads_whose_local_queue_is_not_there_is_forgotten_too():
    use = FairUse(EXACT)
    holding(use, "gone", "job", GPUS)
    use.advance_to(600.0)
    use.release_use("job")
    assert use.score_of("gone") > 0
    use.advance_to(600.0 + 4 * 600.0)
    use.forget_part("other")
    assert use.score_of("gone") == 0.0


def test_without_rules_nothing_is_kept():
    use = FairUse(None)
    use.set_weight("q", 1000)
    holding(use, "q", "job", GPUS, at=5.0)
    use.restore_use("q", {"cpu": 1.0}, 0.0)
    use.release_use("job")
    assert (use.score_of("q"), use.consumed_by("q"), use.stamp) == (0.0, {}, 0)


@pytest.mark.parametrize("rules", [EXACT, SAMPLED])
@pytest.mark.parametrize("seed", range(20))
def test_scores_stay_between_nothing_and_what_was_held_whatever_happens(rules, seed):
    dice, use, held, most, now = random.Random(seed), FairUse(rules), {}, 0, 0.0
    for step in range(200):
        now += dice.choice((0.0, 1.0, 40.0, 2000.0))
        use.advance_to(now)
        key = f"job-{dice.randrange(6)}"
        match dice.choice(("charge", "nominate", "settle", "release")):
            case "charge" | "nominate" as what:
                held[key] = dice.randrange(1, 9)
                use.charge_use("q", key, gpus(held[key]), admitted=what == "charge")
            case "settle":
                use.settle_use(key)
            case "release":
                held.pop(key, None)
                use.release_use(key)
        most = max(most, sum(held.values()))
        # A penalty that was settled counts beside what is held, so sampling may go over it, by as much at most.
        assert 0 <= use.score_of("q") <= most * (1.0 if rules is EXACT else 3.0) + 1e-6, step
    for key in list(held):
        use.release_use(key)
    use.advance_to(now + 60 * 600.0)
    assert use.score_of("q") == pytest.approx(0.0, abs=1e-6), "nothing leaks"
