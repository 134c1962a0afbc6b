"""The steps of a rotation: single ones, and any number of replicas, clients and accidents in any order."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from certs import rotation
from certs.authority import Lifetimes, check, create, fingerprint, service_hosts
from certs.rotation import CA, LEAF, UNKNOWN, Replica, RoundFindings, advance, choose

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LIVES = Lifetimes(ca=timedelta(days=3650), leaf=timedelta(days=365), renew_before=timedelta(days=60))
HOSTS = (*service_hosts("topogate-webhook", "topogate-system"), "127.0.0.1", "::1")
BUNDLE, OTHER = (create(HOSTS, NOW, LIVES) for _ in range(2))
LONG = create(HOSTS, NOW, replace(LIVES, leaf=timedelta(days=3650)))


def days(number):
    return NOW + timedelta(days=number)


def names(bundle):
    return frozenset(map(fingerprint, bundle.authorities))


def after(seen, now=NOW, *, hosts=HOSTS, lives=LIVES):
    return advance(seen, hosts, now, lives)


def at_peace(bundle, **more):
    """All clients have long trusted all of it, and the one replica serves it."""
    replica = Replica((fingerprint(bundle.issuer),), bundle.not_after)
    values = {"trusted": bundle.authorities, "settled": names(bundle), "replicas": {"r": replica}, **more}
    return RoundFindings(**{"stored": bundle, "held": bundle, **values})


def test_nothing_is_done_while_nothing_is_due():
    for day in (0, 100, 242):
        step = after(at_peace(BUNDLE), days(day))
        assert step.bundle is BUNDLE
        assert (step.news, step.repaired, step.adopted, step.retired, step.answered) == ((), "", (), (), False)


def test_the_leaf_is_renewed_at_two_thirds_of_its_life_by_the_same_ca():
    step = after(at_peace(BUNDLE), days(244))
    made = step.bundle
    assert (made.ca_pem, made.ca_key_pem) == (BUNDLE.ca_pem, BUNDLE.ca_key_pem)
    assert made.cert_pem != BUNDLE.cert_pem
    assert made.key_pem != BUNDLE.key_pem
    assert step.news == ("a serving certificate was signed",)
    check(made, days(244))
    assert after(at_peace(made), days(244)).bundle is made


def test_the_setting_renews_earlier():
    lives = replace(LIVES, renew_before=timedelta(days=180))
    assert after(at_peace(BUNDLE), days(184), lives=lives).bundle is BUNDLE
    assert after(at_peace(BUNDLE), days(186), lives=lives).bundle is not BUNDLE


def test_a_new_name_gets_a_certificate_that_keeps_the_old_ones():
    made = after(at_peace(BUNDLE), hosts=["10.0.0.1"]).bundle
    assert made.hosts == {*HOSTS, "10.0.0.1"}
    assert after(at_peace(made)).bundle is made


def test_short_lives_do_not_renew_at_every_look():
    lives = Lifetimes(timedelta(days=90), timedelta(days=90), timedelta(days=60))
    bundle = create(HOSTS, NOW, lives)
    for day in range(90):
        for _ in range(5):
            bundle = after(at_peace(bundle), days(day), lives=lives).bundle
        assert after(at_peace(bundle), days(day), lives=lives).bundle is bundle
        check(bundle, days(day))


@pytest.mark.parametrize("asked", ["", CA])
def test_a_ca_is_rotated_in_steps(asked):
    now = NOW if asked else days(2434)
    old = fingerprint(LONG.issuer)
    step = after(at_peace(LONG, asked=asked), now)
    both = step.bundle
    assert both.authorities[1:] == LONG.authorities
    assert both.cert_pem == LONG.cert_pem
    assert step.answered == bool(asked)

    # Clients do not all have it yet: nothing is signed, also if asked again.
    young = replace(at_peace(both, asked=asked), settled=frozenset([old]))
    assert after(young, now).bundle is both
    assert not after(young, now).answered

    signed = after(at_peace(both), now).bundle
    assert signed.issuer == both.authorities[0]
    assert signed.ca_pem == both.ca_pem

    # As long as a replica may serve a certificate of the old one it stays.
    still = {"a": Replica((fingerprint(signed.issuer),), signed.not_after), "b": Replica((old,), LONG.not_after)}
    assert after(at_peace(signed, replicas=still), now).bundle is signed
    step = after(at_peace(signed), now)
    assert step.bundle.authorities == both.authorities[:1]
    assert step.retired == (old,)
    # Clients still trust it for a moment; it is not taken in again.
    assert after(at_peace(step.bundle, trusted=both.authorities, retired=step.retired), now).bundle is step.bundle


def test_what_a_replica_said_ends_with_its_certificate():
    both = after(at_peace(BUNDLE, asked=CA)).bundle
    signed = after(at_peace(both)).bundle
    dead = {"dead": Replica((fingerprint(BUNDLE.issuer),), days(200))}
    assert after(at_peace(signed, replicas=dead), days(199)).bundle is signed
    assert len(after(at_peace(signed, replicas=dead), days(201)).bundle.authorities) == 1


@pytest.mark.parametrize("held", [None, BUNDLE])
def test_nothing_there_and_nobody_who_trusts_anything_is_a_new_start(held):
    step = after(RoundFindings(None, held))
    check(step.bundle, NOW)
    assert (step.bundle == BUNDLE) == (held is BUNDLE)
    assert bool(step.repaired) == (held is BUNDLE)


BROKEN_SIGNER = [
    replace(BUNDLE, ca_key_pem=OTHER.ca_key_pem),
    replace(BUNDLE, ca_key_pem=b"nonsense"),
    replace(BUNDLE, ca_key_pem=b""),
    replace(BUNDLE, ca_pem=b""),
    replace(BUNDLE, ca_pem=b"nonsense"),
]
BROKEN_LEAF = [
    replace(BUNDLE, key_pem=OTHER.key_pem),
    replace(BUNDLE, cert_pem=b"nonsense"),
    replace(BUNDLE, key_pem=b"nonsense"),
    replace(BUNDLE, cert_pem=OTHER.cert_pem, key_pem=OTHER.key_pem),
    replace(BUNDLE, cert_pem=b"", key_pem=b""),
]


@pytest.mark.parametrize("broken", [*BROKEN_SIGNER, None])
def test_a_broken_ca_is_made_good_from_what_is_held(broken):
    step = after(at_peace(BUNDLE, stored=broken))
    assert step.bundle is BUNDLE
    assert step.repaired


@pytest.mark.parametrize("broken", BROKEN_SIGNER)
def test_where_nothing_is_held_a_broken_ca_gives_way_to_a_new_one_beside_what_clients_trust(broken):
    seen = RoundFindings(broken, None, BUNDLE.authorities, names(BUNDLE))
    step = after(seen)
    assert step.repaired
    assert step.bundle.authorities[1:] == BUNDLE.authorities
    assert step.adopted == tuple(names(BUNDLE))
    assert step.bundle.cert_pem == b""  # others may serve; nobody gets a certificate that clients do not know yet
    assert choose(step.bundle, seen, NOW) is None
    assert choose(step.bundle, replace(seen, held=BUNDLE), NOW) is BUNDLE
    later = after(RoundFindings(step.bundle, None, step.bundle.authorities, names(step.bundle)))
    check(later.bundle, NOW)
    assert later.repaired == ""


@pytest.mark.parametrize("broken", BROKEN_LEAF)
def test_a_broken_leaf_is_signed_again_by_the_ca_that_clients_trust(broken):
    step = after(RoundFindings(broken, None, BUNDLE.authorities, names(BUNDLE)))
    assert step.bundle.ca_pem == BUNDLE.ca_pem
    assert bool(step.repaired) == bool(broken.cert_pem)
    check(step.bundle, NOW)


def test_what_expired_is_repaired_also_where_everything_did():
    step = after(RoundFindings(BUNDLE, BUNDLE, BUNDLE.authorities, names(BUNDLE)), days(400))
    assert step.bundle.ca_pem == BUNDLE.ca_pem
    assert "valid from" in step.repaired
    check(step.bundle, days(400))
    step = after(RoundFindings(BUNDLE, BUNDLE, (), frozenset()), days(4000))
    assert len(step.bundle.authorities) == 1
    assert "the CA is valid from" in step.repaired
    check(step.bundle, days(4000))


def test_certificates_from_a_backup_are_served_once_clients_know_their_ca():
    """Somebody puts an old Secret back; the configurations still have the CA of what is served."""
    seen = RoundFindings(OTHER, BUNDLE, BUNDLE.authorities, names(BUNDLE))
    step = after(seen)
    assert step.bundle.authorities == (*OTHER.authorities, *BUNDLE.authorities)
    assert choose(step.bundle, seen, NOW) is BUNDLE
    seen = replace(seen, stored=step.bundle, trusted=step.bundle.authorities, settled=names(step.bundle))
    assert choose(after(seen).bundle, seen, NOW).cert_pem == OTHER.cert_pem


def test_no_more_cas_are_taken_in_than_a_configuration_should_hold():
    many = tuple(create(["x"], NOW, LIVES).authorities[0] for _ in range(20))
    bundle = after(at_peace(BUNDLE, trusted=many)).bundle
    assert len(bundle.authorities) == rotation.MAX_AUTHORITIES


class Rotation(RuleBasedStateMachine):
    """Replicas, an API server for them to write to, API servers that call them and learn of the caBundle late.

    It models what `certs.manager` does: reads before writes, guards, entries, loading last. Each rule is one read, one
    write or one accident, so that any interleaving comes up.
    """

    REPLICAS = 3

    @initialize()
    def start(self):
        self.now = NOW
        self.ticks = 0
        self.secret, self.entries, self.retired, self.asked = None, {}, (), ""
        self.version = self.configuration_version = 0
        self.configuration = ()
        self.configuration_since = {}
        self.views = [frozenset(), frozenset()]  # what each API server trusts
        self.held = [None] * self.REPLICAS
        self.since = [{} for _ in range(self.REPLICAS)]
        self.plans = [None] * self.REPLICAS
        self.written = [None] * self.REPLICAS
        self.ready = [False] * self.REPLICAS
        self.wild = False

    @rule(who=st.integers(0, REPLICAS - 1))
    def read(self, who):
        """The configuration first, then the Secret (`read_secret` may come much later)."""
        self.plans[who] = ("configuration", self.configuration_version, self.configuration)
        self.written[who] = None

    @rule(who=st.integers(0, REPLICAS - 1))
    def read_secret(self, who):
        plan = self.plans[who]
        if plan is None or plan[0] != "configuration":
            return
        _, version, trusted = plan
        own = self.since[who]
        present = {fingerprint(each): each for each in trusted}
        self.since[who] = {name: own.get(name, self.ticks) for name in present}
        settled = frozenset(name for name, since in self.since[who].items() if self.ticks - since >= 3)
        alive = {name: each for name, each in self.entries.items() if self.now < each.until}
        seen = RoundFindings(self.secret, self.held[who], trusted, settled, alive, self.retired, self.asked)
        step = advance(seen, HOSTS, self.now, LIVES)
        chosen = choose(step.bundle, seen, self.now)
        ready = chosen is not None and rotation.may_serve(chosen.issuer, seen)
        self.plans[who] = ("decided", version, self.version, step, chosen, alive, ready)

    @rule(who=st.integers(0, REPLICAS - 1))
    def write(self, who):
        plan = self.plans[who]
        if plan is None or plan[0] != "decided":
            return
        _, configuration_version, version, step, chosen, alive, ready = plan
        self.plans[who] = None
        if version != self.version:
            return  # a conflict: the round begins again
        entries = dict(alive)
        served = [each for each in (self.held[who], chosen) if each is not None]
        if chosen is not None:
            needs = tuple({fingerprint(each.issuer) for each in served})
            entries[f"r{who}"] = Replica(needs, max(each.not_after for each in served))
        if step.adopted:
            before = entries.get(UNKNOWN, Replica((), self.now))
            entries[UNKNOWN] = Replica((*before.needs, *step.adopted), self.now + LIVES.leaf)
        now = (step.bundle, entries, step.retired, "" if step.answered else self.asked)
        if now != (self.secret, self.entries, self.retired, self.asked):
            self.secret, self.entries, self.retired, self.asked = now
            self.version += 1
        self.written[who] = (configuration_version, step.bundle.authorities, chosen, ready)

    @rule(who=st.integers(0, REPLICAS - 1))
    def publish(self, who):
        if self.written[who] is None:
            return
        version, authorities, chosen, ready = self.written[who]
        self.written[who] = None
        if authorities != self.configuration:
            if version != self.configuration_version:
                return  # a conflict
            self.configuration = authorities
            self.configuration_version += 1
            self.configuration_since = {
                name: self.configuration_since.get(name, self.ticks) for name in map(fingerprint, authorities)
            }
        if chosen is not None:
            self.held[who] = chosen
            self.ready[who] = self.ready[who] or ready

    @rule(who=st.integers(0, REPLICAS - 1), ticks=st.integers(0, 3))
    def whole_round(self, who, ticks):
        for _ in range(ticks):
            self.time_passes(long=False)
        self.read(who)
        self.read_secret(who)
        self.write(who)
        self.publish(who)

    @rule(long=st.booleans())
    def time_passes(self, long):
        """An API server notices a change within two ticks; CAs are settled after three."""
        self.ticks += 1
        self.now += timedelta(days=30) if long else timedelta(seconds=1)
        late = frozenset(name for name, since in self.configuration_since.items() if self.ticks - since >= 2)
        names_now = frozenset(map(fingerprint, self.configuration))
        self.views = [names_now, late | (self.views[1] & names_now)]

    @rule(asked=st.sampled_from([LEAF, CA]))
    def ask(self, asked):
        if self.secret is not None:
            self.asked = asked
            self.version += 1

    @rule(what=st.sampled_from(["empty", "no key", "no leaf", "half", "backup"]))
    @precondition(lambda self: self.secret is not None)
    def accident(self, what):
        broken = {
            "empty": None,
            "no key": replace(self.secret, ca_key_pem=b""),
            "no leaf": replace(self.secret, cert_pem=b"", key_pem=b""),
            "half": replace(self.secret, ca_pem=b"", key_pem=b"x"),
            "backup": OTHER,
        }
        self.secret = broken[what]
        if what in {"empty", "backup"}:
            self.entries, self.retired = {}, ()
        self.version += 1

    @rule(who=st.integers(0, REPLICAS - 1))
    def restart(self, who):
        """It is killed; what it said of itself stays."""
        self.held[who] = self.plans[who] = self.written[who] = None
        self.since[who], self.ready[who] = {}, False

    @invariant()
    def whoever_is_called_serves_what_is_trusted(self):
        for held, ready in zip(self.held, self.ready, strict=True):
            if held is None or not ready:
                continue
            if self.now >= held.not_after:
                continue  # nobody looked for months
            for view in self.views:
                # An API server that trusts nothing at all yet has no webhook that could answer it.
                assert not view or fingerprint(held.issuer) in view

    @invariant()
    def what_is_stored_can_be_served_or_is_on_its_way(self):
        if self.secret is not None and self.secret.cert_pem and self.version and self.secret.ca_pem:
            assert len(self.secret.authorities) <= rotation.MAX_AUTHORITIES


TestRotation = Rotation.TestCase
TestRotation.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
