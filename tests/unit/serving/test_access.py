"""Who may read metrics: what is asked, remembered, and answered where nobody can be asked."""

import asyncio

import pytest

from kube.errors import ConnectionFailed
from serving import access
from serving.access import ALLOWED, NO_TOKEN, NOT_KNOWN, TOO_MANY, Access, Verdict

GOOD, POOR = "good-token", "poor-token"
MAY_NOT = Verdict(403, "bind it to a role")


class Reviews:
    """Verdicts by token."""

    def __init__(self):
        self.asked = []
        self.away = False
        self.slow = None
        self.verdicts = {GOOD: ALLOWED, POOR: MAY_NOT}

    async def __call__(self, token):
        self.asked.append(token)
        if self.slow is not None:
            await self.slow.wait()
        if self.away:
            raise ConnectionFailed("nobody is there")
        return self.verdicts.get(token, NOT_KNOWN)


@pytest.fixture
def reviews():
    return Reviews()


@pytest.fixture
def now():
    class Clock:
        value = 1000.0

        def __call__(self):
            return self.value

    return Clock()


@pytest.fixture
def asked(reviews, now):
    return Access(reviews, now)


def bearer(token):
    return f"Bearer {token}"


@pytest.mark.parametrize(
    "header", [None, "", "Basic abc", "Bearer", "Bearer ", "bearer  ", "Bearer ü", "Bearer " + "x" * 20_000]
)
async def test_without_a_token_nobody_is_asked(asked, reviews, header):
    assert await asked.check(header) == NO_TOKEN
    assert reviews.asked == []


async def test_who_may_read_may_for_a_minute_without_another_question(asked, reviews, now):
    assert (await asked.check(bearer(GOOD))).status == 200
    now.value += 59
    assert (await asked.check(f"bearer {GOOD}")).status == 200
    assert reviews.asked == [GOOD]
    del reviews.verdicts[GOOD]
    now.value += 2
    assert await asked.check(bearer(GOOD)) == NOT_KNOWN


async def test_who_may_not_is_asked_about_again_soon(asked, reviews, now):
    assert await asked.check(bearer(POOR)) == MAY_NOT
    assert await asked.check(bearer("made-up")) == NOT_KNOWN
    assert await asked.check(bearer(POOR)) == MAY_NOT
    assert len(reviews.asked) == 2
    now.value += 11
    reviews.verdicts[POOR] = ALLOWED
    assert await asked.check(bearer(POOR)) == ALLOWED


async def test_an_api_server_that_is_away_takes_nobodys_eyes(asked, reviews, now):
    assert (await asked.check(bearer(GOOD))).status == 200
    reviews.away = True
    now.value += 240
    assert (await asked.check(bearer(GOOD))).status == 200
    assert (await asked.check(bearer("new"))).status == 503
    now.value += 61
    assert (await asked.check(bearer(GOOD))).status == 503
    reviews.away = False
    assert (await asked.check(bearer(GOOD))).status == 200


async def test_a_flood_of_made_up_tokens_costs_the_api_server_little_and_takes_nobodys_eyes(asked, reviews, now):
    assert (await asked.check(bearer(GOOD))).status == 200
    now.value += 61
    answers = [await asked.check(bearer(f"made-up-{number}")) for number in range(2000)]
    assert len(reviews.asked) <= 1 + access.REVIEWS_AT_ONCE
    assert answers[-1] == TOO_MANY
    assert (await asked.check(bearer(GOOD))).status == 200  # it could a minute ago
    now.value += 1
    assert (await asked.check(bearer("made-up-again"))) == NOT_KNOWN


async def test_what_is_remembered_is_bounded_and_holds_no_token(asked, reviews, now):
    for number in range(access.REMEMBERED + 100):
        now.value += 1
        await asked.check(bearer(f"made-up-{number}"))
    assert len(asked._known) == access.REMEMBERED
    assert b"made-up" not in b"".join(asked._known)


async def test_many_at_once_with_one_token_ask_once_and_one_who_leaves_takes_nobodys_answer(asked, reviews):
    reviews.slow = asyncio.Event()
    waiting = [asyncio.create_task(asked.check(bearer(GOOD))) for _ in range(10)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    reviews.slow.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [answer.status for answer in answers[1:]] == [200] * 9
    assert reviews.asked == [GOOD]
