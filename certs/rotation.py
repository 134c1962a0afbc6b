"""What happens to a set of certificates next. Pure: what was seen and `now` in, the next step out.

Rules
- A serving certificate in the Secret is of a CA that every client has long had (``settled``), unless clients have no
  other one: so whoever starts may serve it at once.
- A new CA is put in front and published beside the old ones first; it signs once it is settled.
- A replica that serves changes over only to a certificate whose CA is settled, as long as the one it has is good.
- Before a replica serves a certificate it says so (`Replica`) in the Secret, under the resourceVersion by which it read
  it. An old CA is dropped, under the resourceVersion too, once no replica says that it may serve a certificate of it.
- A CA that clients trust and the Secret does not know is taken in, not taken away: somebody may serve a certificate of
  it. It is kept for the longest time that such a certificate can live, or until it expires.
- A set that cannot be used is made good from what this process serves; else a new CA starts over, beside all that
  clients trust.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from cryptography import x509
from msgspec.structs import replace

from certs.authority import (
    Bundle,
    BundleError,
    Lifetimes,
    add_authority,
    check_serving,
    check_signer,
    create_authority,
    fingerprint,
    is_due,
    pem_of,
    reissue,
)

LEAF, CA = "leaf", "ca"  # what an administrator may ask to have replaced
UNKNOWN = "unknown"  # stands for replicas that may serve a certificate of a CA that was taken in
# `_adopt` takes in what stands in a caBundle. Without a bound, a writer of that could fill the Secret and every
# configuration.
MAX_AUTHORITIES = 12
# A late write of a caBundle may bring back a CA that was dropped. The last eight are not adopted again.
MAX_RETIRED = 8


class Replica(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one replica says of itself.

    ``needs``: fingerprints of the CAs of which it may serve a certificate. ``serves``: the certificate it serves, for
    people. ``until``: when the last certificate that this speaks of has ended; void after it. ``pod``, ``uid``: the
    replica's pod, if it is one: void once that is gone.
    """

    needs: tuple[str, ...]
    until: datetime
    serves: str = ""
    pod: str = ""
    uid: str = ""


class RoundFindings(msgspec.Struct, frozen=True):
    """What one round found.

    ``stored``: what the Secret holds, whole or not. ``held``: what this process serves. ``trusted``: every CA in the
    webhook configurations; ``settled``: fingerprints of those that clients have long had. ``replicas``: what all
    replicas say, without the ones that are known to be gone. ``retired``: fingerprints of CAs that were dropped.
    ``asked``: `LEAF`, `CA` or nothing.
    """

    stored: Bundle | None = None
    held: Bundle | None = None
    trusted: tuple[x509.Certificate, ...] = ()
    settled: frozenset[str] = frozenset()
    replicas: Mapping[str, Replica] = msgspec.field(default_factory=dict)
    retired: tuple[str, ...] = ()
    asked: str = ""


class RotationStep(msgspec.Struct, frozen=True):
    """What the Secret shall hold. ``bundle`` has no serving certificate as long as none may be signed.

    ``adopted``: fingerprints of CAs that were taken in. ``answered``: what was asked is done. ``repaired``: what was
    wrong with the Secret. ``news``: what was made, for people.
    """

    bundle: Bundle
    adopted: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    answered: bool = False
    repaired: str = ""
    news: tuple[str, ...] = ()


def advance(seen: RoundFindings, hosts: Iterable[str], now: datetime, lifetimes: Lifetimes) -> RotationStep:
    """One step of a rotation; take it again after the step's result is stored and published."""
    news: list[str] = []
    # 1. a CA that can sign: the stored one, else the one that is held, else a new one
    base, repaired = _with_signer(seen, now, lifetimes, news)
    # 2. every CA of which somebody may serve a certificate stays trusted
    bundle, adopted = _adopt(base, seen, now)
    # 3. a new CA goes in front, unless the last one has not even signed yet
    fault = _fault(bundle, now)
    answered = False
    if fault is None and bundle.issuer == bundle.authorities[0]:
        answered = seen.asked == CA
        # `renew_before` is about serving certificates. A CA is due at two thirds of its life.
        if answered or is_due(bundle.authorities[0], now, timedelta(0)):
            bundle = add_authority(bundle, now, lifetimes)
            news.append("a new certificate authority was put in front")
    # 4. a serving certificate is signed where it lacks or is due, if clients know its CA; then nothing else is done
    wanted = frozenset(hosts) | (bundle.hosts if fault is None else frozenset())  # replicas may differ in settings
    retired = seen.retired
    # Also a good one is replaced: for its signer, its names, a wish, or its age.
    up_to_date = (
        fault is None
        and bundle.issuer == bundle.authorities[0]
        and wanted == bundle.hosts
        and seen.asked != LEAF
        and not is_due(bundle.leaf, now, lifetimes.renew_before)
    )
    if up_to_date:
        # 5. what nobody needs any more is dropped; of what was just taken in nobody could say so yet
        bundle, retired = (bundle, retired) if adopted else _drop(bundle, seen, now)
    elif may_serve(bundle.authorities[0], seen):
        bundle = reissue(bundle, wanted, now, lifetimes)
        answered = answered or seen.asked == LEAF
        news.append("a serving certificate was signed")
    elif fault is not None:
        # The pair is useless and its successor's CA not yet trusted. An empty pair keeps replicas that start from
        # loading it.
        bundle = replace(bundle, cert_pem=b"", key_pem=b"")
    # An absent pair is a first start, not a repair.
    if not repaired and fault is not None and base.cert_pem:
        repaired = fault
    return RotationStep(bundle, adopted, retired, answered, repaired, tuple(news))


def choose(candidate: Bundle, seen: RoundFindings, now: datetime) -> Bundle | None:
    """Which to serve now: the one in the Secret, or still the one that is held. None: neither can be served."""
    held = seen.held if seen.held is not None and _fault(seen.held, now) is None else None
    if _fault(candidate, now) is not None:
        return held
    # Of one CA, the new certificate is trusted wherever the old one is: there is nothing to wait for.
    if held is None or candidate.cert_pem == held.cert_pem or candidate.issuer == held.issuer:
        return candidate
    return candidate if candidate.issuer is not None and may_serve(candidate.issuer, seen) else held


def may_serve(authority: x509.Certificate, seen: RoundFindings) -> bool:
    """Whether clients have long had this CA, or have none other that a certificate could be of."""
    # This includes a first start, where no webhook trusts anything: no call is lost that would have succeeded.
    return fingerprint(authority) in seen.settled or all(each == authority for each in seen.trusted)


def _with_signer(seen: RoundFindings, now: datetime, lifetimes: Lifetimes, news: list[str]) -> tuple[Bundle, str]:
    """The set to go on with, and what was wrong with the stored one."""
    fault = "it was empty" if seen.stored is None else _signer_fault(seen.stored, now)
    if seen.stored is not None and fault is None:
        return seen.stored, ""
    if seen.held is not None and _signer_fault(seen.held, now) is None:
        return seen.held, fault or ""
    news.append("a certificate authority was made")
    return create_authority(now, lifetimes), (fault or "") if seen.stored is not None else ""


def _adopt(bundle: Bundle, seen: RoundFindings, now: datetime) -> tuple[Bundle, tuple[str, ...]]:
    """Take in the CA of what this process serves, and every CA that clients trust and that was not dropped by us."""
    known = {fingerprint(each) for each in bundle.authorities}
    trusted = {fingerprint(each): each for each in seen.trusted}
    # What this process serves comes first: the cut at MAX_AUTHORITIES must not drop it.
    extra = {**_served_authorities(seen), **{name: each for name, each in trusted.items() if name not in seen.retired}}
    added = [name for name, each in extra.items() if name not in known and now < each.not_valid_after_utc]
    added = added[: max(0, MAX_AUTHORITIES - len(known))]
    if not added:
        return bundle, ()
    return replace(bundle, ca_pem=bundle.ca_pem + pem_of(extra[name] for name in added)), tuple(added)


def _served_authorities(seen: RoundFindings) -> dict[str, x509.Certificate]:
    """The CA of what this process serves, by its fingerprint."""
    issuer = seen.held.issuer if seen.held is not None else None
    return {} if issuer is None else {fingerprint(issuer): issuer}


def _drop(bundle: Bundle, seen: RoundFindings, now: datetime) -> tuple[Bundle, tuple[str, ...]]:
    """The set without CAs that nobody needs, and the names of the ones that were dropped lately."""
    # A replica that writes its entry after this was read makes our guarded write fail, and the round begins again.
    needed = {name for replica in seen.replicas.values() if now < replica.until for name in replica.needs} | {
        *_served_authorities(seen)
    }
    signer, *others = bundle.authorities
    kept = [each for each in others if fingerprint(each) in needed and now < each.not_valid_after_utc]
    if len(kept) == len(others):
        return bundle, seen.retired
    gone = tuple(fingerprint(each) for each in others if each not in kept)
    return replace(bundle, ca_pem=pem_of((signer, *kept))), (*seen.retired, *gone)[-MAX_RETIRED:]


def _fault(bundle: Bundle, now: datetime) -> str | None:
    """What is wrong with the serving certificate."""
    try:
        check_serving(bundle, now)
    except BundleError as error:
        return str(error)
    return None


def _signer_fault(bundle: Bundle, now: datetime) -> str | None:
    try:
        check_signer(bundle, now)
    except BundleError as error:
        return str(error)
    return None
