import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from certs.authority import Bundle, BundleError, Lifetimes, advance, check, create, service_hosts
from certs.manager import Options, _bundle_of, _data_of
from crds.settings import Settings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LIVES = Lifetimes(ca=timedelta(days=3650), leaf=timedelta(days=365), renew_before=timedelta(days=60))
HOSTS = (*service_hosts("topogate-webhook", "topogate-system"), "127.0.0.1", "::1")
BUNDLE = create(HOSTS, NOW, LIVES)


def days(number):
    return NOW + timedelta(days=number)


def step(bundle, now, *, hosts=HOSTS, lives=LIVES, settled=False):
    return advance(bundle, hosts, now, lives, settled=settled)


def issuer_index(bundle):
    """Which of the bundle's CAs signed its serving certificate."""
    for index, authority in enumerate(bundle.authorities):
        try:
            bundle.leaf.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001 - any failure means that it was another
            continue
        return index
    raise AssertionError("none of them")


def test_what_is_made_is_whole():
    check(BUNDLE, NOW)
    assert BUNDLE.hosts == set(HOSTS)
    assert BUNDLE.not_after == days(365)
    assert isinstance(BUNDLE.leaf.public_key(), ec.EllipticCurvePublicKey)
    assert BUNDLE.leaf.public_key().curve.name == "secp256r1"
    ca = BUNDLE.authorities[0]
    assert ca.not_valid_after_utc == days(3650)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert not BUNDLE.leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = BUNDLE.leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_long_service_name_is_no_common_name():
    long = "a" * 63 + ".some-namespace.svc"
    assert create([long], NOW, LIVES).hosts == {long}


def test_nothing_is_done_while_nothing_is_due():
    for day in (0, 100, 242):
        assert step(BUNDLE, days(day), settled=True) is BUNDLE


def test_the_leaf_is_renewed_at_two_thirds_of_its_life_by_the_same_ca():
    after = step(BUNDLE, days(244))
    assert after.ca_pem == BUNDLE.ca_pem
    assert after.ca_key_pem == BUNDLE.ca_key_pem
    assert after.cert_pem != BUNDLE.cert_pem
    assert after.key_pem != BUNDLE.key_pem
    check(after, days(244))
    assert step(after, days(244)) is after


def test_the_setting_renews_earlier():
    lives = replace(LIVES, renew_before=timedelta(days=180))
    assert step(BUNDLE, days(184), lives=lives) is BUNDLE
    assert step(BUNDLE, days(186), lives=lives) is not BUNDLE


def test_a_new_name_gets_a_certificate_that_keeps_the_old_ones():
    after = step(BUNDLE, NOW, hosts=["10.0.0.1"])
    assert after.hosts == {*HOSTS, "10.0.0.1"}
    assert step(after, NOW, hosts=HOSTS) is after


def test_a_ca_is_rotated_in_steps_and_no_client_meets_what_it_does_not_trust():
    due = days(2434)
    old = replace(create(HOSTS, NOW, replace(LIVES, leaf=timedelta(days=3650))))
    both = step(old, due)
    assert len(both.authorities) == 2
    assert both.authorities[1] == old.authorities[0]
    assert both.cert_pem == old.cert_pem
    check_signer_of_old_leaf = issuer_index(both)
    assert check_signer_of_old_leaf == 1
    assert step(both, due) is both  # not settled: wait
    switched = step(both, due, settled=True)
    assert issuer_index(switched) == 0
    assert switched.ca_pem == both.ca_pem
    assert step(switched, due, settled=True) is switched
    check(switched, due)


def test_an_expired_ca_is_dropped():
    old = create(HOSTS, NOW, replace(LIVES, leaf=timedelta(days=3650)))
    switched = step(step(old, days(2434)), days(2434), settled=True)
    later = step(switched, days(3651), settled=True)
    while (following := step(later, days(3651), settled=True)) is not later:
        later = following
    assert later.authorities == switched.authorities[:1]


def test_an_expired_leaf_is_replaced_at_once_by_the_trusted_ca():
    after = step(BUNDLE, days(400))
    assert after.ca_pem == BUNDLE.ca_pem
    check(after, days(400))


def test_where_everything_expired_all_is_made_anew():
    after = step(BUNDLE, days(4000))
    assert len(after.authorities) == 1
    check(after, days(4000))


OTHER = create(HOSTS, NOW, LIVES)


@pytest.mark.parametrize(
    ("broken", "keeps_ca"),
    [
        (replace(BUNDLE, key_pem=OTHER.key_pem), True),
        (replace(BUNDLE, cert_pem=b"nonsense"), True),
        (replace(BUNDLE, key_pem=b"nonsense"), True),
        (replace(BUNDLE, cert_pem=OTHER.cert_pem, key_pem=OTHER.key_pem), True),
        (replace(BUNDLE, ca_key_pem=OTHER.ca_key_pem), False),
        (replace(BUNDLE, ca_key_pem=b"nonsense"), False),
        (replace(BUNDLE, ca_pem=b""), False),
    ],
)
def test_what_is_broken_is_repaired(broken, keeps_ca):
    with pytest.raises(BundleError):
        check(broken, NOW)
    after = step(broken, NOW)
    check(after, NOW)
    assert (after.ca_pem == BUNDLE.ca_pem) == keeps_ca


def test_somebody_elses_certificate_is_never_replaced():
    foreign = replace(BUNDLE, ca_key_pem=b"")
    assert step(foreign, days(5000), settled=True) is foreign
    with pytest.raises(BundleError, match="valid from"):
        check(foreign, days(5000))


def test_short_lives_do_not_renew_at_every_look():
    lives = Lifetimes(timedelta(days=90), timedelta(days=90), timedelta(days=60))
    bundle = create(HOSTS, NOW, lives)
    for day in range(90):
        for _ in range(5):
            bundle = step(bundle, days(day), lives=lives, settled=True)
        assert step(bundle, days(day), lives=lives, settled=True) is bundle
        check(bundle, days(day))


def test_keys_are_never_shown():
    assert "PRIVATE" not in repr(BUNDLE)
    assert "PRIVATE" not in str(BUNDLE)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.booleans()), max_size=12))
def test_whatever_the_times_the_served_leaf_is_valid_and_of_a_published_ca(waits):
    """A client trusts what was published when it last looked; the leaf that follows must be of one of those CAs."""
    now, bundle = NOW, BUNDLE
    for wait, settled in waits:
        now += timedelta(days=wait)
        before = bundle
        bundle = step(bundle, now, settled=settled)
        check(bundle, now)
        trusted_before = set(before.authorities)
        signer = bundle.authorities[issuer_index(bundle)]
        everything_expired = all(now >= ca.not_valid_after_utc for ca in before.authorities[:1])
        assert signer in trusted_before or everything_expired


def test_a_secret_holds_it_and_gives_it_back():
    secret = {"data": _data_of(BUNDLE)}
    assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert _bundle_of(secret) == BUNDLE


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": ""}, {"tls.crt": "!!!", "tls.key": "x"}])
def test_an_empty_secret_is_only_the_place_for_it(data):
    assert _bundle_of({"data": data}) is None


def test_a_secret_of_cert_manager_has_no_ca_key():
    data = {
        name: base64.b64encode(part).decode()
        for name, part in (("tls.crt", BUNDLE.cert_pem), ("tls.key", BUNDLE.key_pem))
    }
    found = _bundle_of({"data": data})
    assert found == Bundle(b"", BUNDLE.cert_pem, BUNDLE.key_pem)
    assert not found.managed


def test_options_take_names_and_times_from_the_settings():
    options = Options.from_settings(
        Settings(webhook_url="https://10.1.2.3:9443/x", namespace="ns", certificate_days=30, certificate_renew_days=5),
        ["host.example"],
    )
    assert options.hosts == (
        "topogate-webhook.ns.svc",
        "topogate-webhook.ns.svc.cluster.local",
        "10.1.2.3",
        "host.example",
    )
    assert options.lifetimes.leaf == timedelta(days=30)
    assert options.lifetimes.renew_before == timedelta(days=5)
    assert options.sign
    assert not Options.from_settings(Settings(certificate_source="cert-manager")).sign
