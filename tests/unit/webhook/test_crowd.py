"""Who has to go where one more comes."""

import heapq
import itertools
import math
import random
from collections import deque

import pytest

from webhook.crowd import GRACE_SECONDS, LARGE_BYTES, OURS_SECONDS, PATIENCE_SECONDS, SHORT_GRACE_SECONDS, Crowd, Why


def nothing():
    """There is nothing to end, and nothing to read."""
    return False


class Clients:
    """Those who come to a crowd, by name; ``gone`` are those who had to go."""

    def __init__(self, most, **arguments):
        self.gone, self.why = [], []
        self.crowd = Crowd(most, tell=self.why.append, **arguments)

    def come(self, name, now, unread=nothing):
        return self.crowd.admit_connection(now, lambda: self.gone.append(name), unread)

    def known(self, name, now):
        place = self.come(name, now)
        place.answered(now, known=True)
        return place


def test_the_one_that_has_been_idle_longest_goes_first():
    clients = Clients(4)
    places = {name: clients.known(name, at) for at, name in enumerate("abcd")}
    places["a"].begin_request(10)
    places["a"].answered(10, known=True)  # it was used again
    assert clients.come("e", 11)
    assert clients.come("f", 11)
    assert (clients.gone, clients.why) == (["b", "c"], [Why.IDLE] * 2)
    assert len(clients.crowd) == 4


def test_one_in_the_middle_of_a_request_is_not_idle():
    clients = Clients(4)
    places = [clients.known(name, 0) for name in "abcd"]
    for place in places[:3]:
        place.begin_request(100)
    assert clients.come("e", 100.5)
    assert clients.gone == ["d"]
    assert clients.come("f", 100.5) is None, "nobody is idle: it waits"


def test_one_that_keeps_us_waiting_goes_before_one_that_is_idle():
    clients = Clients(4)
    slow = [clients.known(name, 0) for name in "abcd"][1]
    slow.begin_request(100)
    assert clients.come("e", 100 + GRACE_SECONDS)
    assert (clients.gone, clients.why) == (["b"], [Why.SLOW])


def test_strangers_take_half_of_the_places_and_no_more():
    clients = Clients(8)
    for name in "abcd":
        clients.known(name, 0)
    for number in range(100):
        assert clients.come(f"s{number}", 1 + number)
    assert clients.gone == [f"s{number}" for number in range(96)], "each takes the place of another stranger"
    assert len(clients.crowd) == 8


def test_a_stranger_that_has_its_answer_is_none_any_more():
    clients = Clients(4)
    for at, name in enumerate("abcd"):
        clients.known(name, at)
    assert not clients.gone
    stranger = clients.come("e", 10)
    assert clients.gone == ["a"]
    stranger.answered(11, known=False)  # it asked for nothing that is a review
    assert clients.come("f", 11)
    assert clients.come("g", 11 + GRACE_SECONDS)
    assert clients.gone == ["a", "b", "e"]


def test_a_newcomer_waits_where_nobody_is_slow_or_idle_and_is_told_when_there_is_room():
    clients, told = Clients(4), []
    first, second = clients.come("a", 0), clients.come("b", 0.25)
    assert clients.come("c", 0.5) is None
    assert clients.crowd.seconds_to_wait(0.5) == GRACE_SECONDS - 0.5
    clients.crowd.await_room(lambda: told.append(1))
    first.answered(0.6, known=True)
    assert told == [1]
    assert clients.come("c", 0.6)
    assert clients.come("d", 0.6) is None
    clients.crowd.await_room(lambda: told.append(2))
    second.leave_crowd()
    second.leave_crowd()
    assert told == [1, 2]
    assert clients.come("d", 0.6)
    assert not clients.gone


def test_where_newcomers_have_had_to_wait_for_long_nobody_has_much_time():
    clients, now = Clients(4), 0.0
    waited = []
    while now < 2 * PATIENCE_SECONDS:
        if clients.come(str(now), now) is None:
            waited.append(clients.crowd.seconds_to_wait(now))
            now += waited[-1]
    assert waited[0] == GRACE_SECONDS
    assert waited[-1] == pytest.approx(SHORT_GRACE_SECONDS)


def test_one_that_we_have_not_come_to_is_not_slow_for_a_while():
    clients = Clients(4)
    clients.come("a", 0, unread=lambda: True)
    heard = clients.come("b", 0.1, unread=lambda: True)
    assert clients.come("c", 3) is None
    heard.mark_read()  # what it sends now is not its first
    assert clients.come("c", 3)
    assert clients.gone == ["b"]
    assert clients.come("d", OURS_SECONDS)
    assert clients.gone == ["b", "a"]


def test_of_those_that_send_large_bodies_the_one_that_began_first_goes():
    clients = Clients(16, most_bytes=10 * LARGE_BYTES)
    places = [clients.come(name, at) for at, name in enumerate("abcd")]
    places[0].begin_body(LARGE_BYTES - 1)  # too little to matter
    for place in places[1:]:
        place.begin_body(4 * LARGE_BYTES)
    assert (clients.gone, clients.why) == (["b"], [Why.BODIES])
    places[2].answered(5, known=True)
    assert clients.crowd.held == 5 * LARGE_BYTES - 1
    places[3].begin_body(11 * LARGE_BYTES)
    assert clients.gone == ["b", "d"], "where there is no other, the one that is too large itself"
    places[0].leave_crowd()
    assert clients.crowd.held == 0


def test_small_bodies_have_nobody_go():
    clients = Clients(64, most_bytes=LARGE_BYTES)
    for number in range(32):
        clients.come(str(number), 0).begin_body(LARGE_BYTES - 1)
    assert not clients.gone


@pytest.mark.parametrize("seed", range(20))
def test_what_is_counted_is_what_is_there(seed):
    dice, now = random.Random(seed), 0.0
    clients = Clients(8, most_bytes=4 * LARGE_BYTES)
    places = []
    for _ in range(2000):
        now += dice.random() / 4
        place = dice.choice(places) if places else None
        match dice.randrange(5):
            case 0 | 1:
                if (new := clients.come("x", now)) is not None:
                    places.append(new)
            case 2 if place:
                place.begin_request(now)
                place.begin_body(dice.randrange(3 * LARGE_BYTES))
            case 3 if place:
                place.answered(now, known=dice.random() < 0.7)
            case 4 if place:
                place.leave_crowd()
        places = [one for one in places if one in clients.crowd._places]
        assert len(clients.crowd) == len(places) <= 8
        assert clients.crowd._strangers == sum(not one.known for one in places) <= 4
        assert clients.crowd.held == sum(one.held for one in places) < (4 + 8) * LARGE_BYTES


# --- attacks, in virtual time ----------------------------------------------------------------------------------------

QUEUE = 1024  # as the kernel's: who comes beyond tries again a second later
NEEDS_SECONDS = 0.05  # from an API server's connection to its whole review
DEADLINE_SECONDS = 10.0
SECONDS = 30.0
FIRST_CALL, LAST_CALL, CALL_SECONDS = 5.0, 20.0, 0.5


class Attack:
    """An API server that calls every now and then, and newcomers at these times that never ask.

    ``kept``: it keeps one connection as long as it is let.
    """

    def __init__(self, times, *, kept=False):
        self.crowd, self.waits = Crowd(256, tell=[].append), False
        self.kept, self.connection = kept, None
        self.queue, self.gone, self.serial = deque(), set(), itertools.count()
        self.events = []
        for time in itertools.takewhile(lambda time: time < SECONDS, times):
            self.at(time, self.intrude)
        for call in range(int((LAST_CALL - FIRST_CALL) / CALL_SECONDS)):
            self.at(FIRST_CALL + call * CALL_SECONDS, self.call, FIRST_CALL + call * CALL_SECONDS)

    def at(self, time, what, *about):
        heapq.heappush(self.events, (time, next(self.serial), what, about))

    def calls(self):
        """How long each call took; infinite where it was not through in time."""
        self.taken = {}
        while self.events and self.events[0][0] < SECONDS:
            now, _, what, about = heapq.heappop(self.events)
            what(now, *about)
            self.admit(now)
        return [self.taken.get(FIRST_CALL + n * CALL_SECONDS, math.inf) for n in range(int(15 / CALL_SECONDS))]

    def intrude(self, _):
        if len(self.queue) < QUEUE:
            self.queue.append(None)

    def call(self, now, began):
        if self.kept and self.connection in self.crowd._places:
            self.connection.begin_request(now)
            self.connection.answered(now, known=True)
            self.taken[began] = now - began
        elif len(self.queue) < QUEUE:
            self.queue.append(began)
        else:
            self.at(now + 1, self.call, began)

    def whole(self, now, began, place):
        if place not in self.crowd._places:  # it had to go in the middle
            self.call(now, began)
            return
        place.answered(now, known=True)
        self.taken[began] = now - began
        self.connection = place
        if not self.kept:
            place.leave_crowd()

    def look(self, _):
        self.crowd.stop_awaiting_room()
        self.waits = False

    def room(self):
        self.waits = False

    def admit(self, now):
        while self.queue and not self.waits:
            place = self.crowd.admit_connection(now, nothing, nothing)
            if place is None:
                self.crowd.await_room(self.room)
                self.waits = True
                self.at(now + self.crowd.seconds_to_wait(now), self.look)
            elif (began := self.queue.popleft()) is not None:
                self.at(now + NEEDS_SECONDS, self.whole, began, place)


def steadily(rate, start=0.0):
    return (start + number / rate for number in itertools.count())


@pytest.mark.parametrize("rate", [10, 100, 1000, 2000])
def test_a_flood_of_connections_that_never_ask_does_not_lock_out_an_api_server(rate):
    assert max(Attack(steadily(rate)).calls()) < DEADLINE_SECONDS / 2


def test_a_crowd_that_comes_at_once_does_not_either():
    assert max(Attack(iter([4.9] * 1500)).calls()) < DEADLINE_SECONDS


@pytest.mark.parametrize("rate", [10, 1000, 3000])
def test_a_connection_that_an_api_server_keeps_is_not_taken_by_those_that_never_ask(rate):
    first, *others = Attack(steadily(rate, start=5.4), kept=True).calls()
    assert first == pytest.approx(NEEDS_SECONDS)
    assert others
    assert set(others) == {0.0}


@pytest.mark.parametrize("handshake", [0.002, 0.02])
def test_a_burst_of_api_servers_is_served_whole_also_by_a_slow_machine(handshake):
    """More at once than there are places: nobody is closed, all wait for their turn."""
    why = []

    def hello():
        return True  # it said it, and we have not come to it

    crowd, now, waiting, served, places = Crowd(256, tell=why.append), 0.0, 2000, 0, deque()
    while served < 2000:
        while waiting and (place := crowd.admit_connection(now, nothing, hello)) is not None:
            waiting -= 1
            places.append(place)
        now += handshake
        places.popleft().answered(now, known=True)
        served += 1
    assert set(why) == {Why.IDLE}
