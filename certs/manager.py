"""Keeps the webhook's Secret and the caBundle of its configurations right, for ever, with any number of replicas.

One round reads as follows:

1. read the webhook configurations, then the Secret;
2. let `rotation.advance` decide what the Secret shall hold, and `rotation.choose` what is served;
3. write that, and what this replica may serve from now on, guarded by the resourceVersion. Who loses a race begins the
   round again, so replicas that start together end with one CA;
4. write the CAs into every webhook that has other ones (somebody re-applied the manifests, say), guarded too;
5. hand the certificate to the server.

The time is the API server's, because API servers judge certificates: a replica whose clock is wrong does no harm. A
round that fails changes nothing that is served, and is tried again.

Where cert-manager makes the certificates nothing is ever written: `foreign` has those rounds.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from certs import foreign, store, trust
from certs.authority import Bundle, BundleError, fingerprint
from certs.foreign import CertificatesMissingError
from certs.options import CertificateOptions
from certs.rotation import UNKNOWN, Replica, RotationStep, RoundFindings, advance, choose, may_serve
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Forbidden, KubeError, NotFound
from kube.events import ObjectReference
from kube.objects import Object
from kube.patches import retry_on_conflict
from kube.resources import PODS, SECRETS

log = structlog.get_logger(__name__)

# A process that ends waits this long at most. An entry that stays is dropped by `_alive` once the pod is gone.
LEAVE_SECONDS = 5.0
_UNCHECKED = "certificates could not be checked; trying again"
# Each lost race means that another replica has written. After ten the round fails, and `run` begins the next one.
_ATTEMPTS = 10

Notify = Callable[[ObjectReference, str, Reason, str], None]  # about what, Normal or Warning, reason, message


class CertificateManager:
    """Runs the rounds.

    ``on_change`` gets each certificate that is to be served, after its CA was published. ``notify`` is told what people
    shall see as an event. ``clock`` None: the time is the API server's.
    """

    def __init__(
        self,
        client: Client,
        options: CertificateOptions,
        on_change: Callable[[Bundle], None],
        *,
        notify: Notify,
        clock: Callable[[], datetime] | None = None,
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._options = options
        self._on_change = on_change
        self._notify = notify
        self._clock = clock or client.server_time
        self._monotonic = monotonic
        self._settling = trust.Settling(options.settle_seconds)
        self._said: dict[str, str] = {}
        self.bundle: Bundle | None = None
        self.published = False
        self.rounds = 0

    async def run_round(self) -> None:
        """One round. Raises KubeError, CertificatesMissingError and BundleError; what is served then stays."""
        chosen = await retry_on_conflict(self._sign if self._options.sign else self._follow, attempts=_ATTEMPTS)
        if self.bundle is None or (chosen.cert_pem, chosen.key_pem) != (self.bundle.cert_pem, self.bundle.key_pem):
            # Before `self.bundle` changes: where the server refuses the pair, the next round hands it over again.
            self._on_change(chosen)
            log.info("serving certificate loaded", not_after=chosen.not_after.isoformat(), hosts=sorted(chosen.hosts))
        self.bundle = chosen
        self.rounds += 1

    async def run(self) -> None:
        """Rounds for ever; ends only by cancellation."""
        while True:
            try:
                await self.run_round()
            except (KubeError, CertificatesMissingError, BundleError) as error:
                self._log_once(_UNCHECKED, str(error))
            except Exception:
                log.exception(_UNCHECKED)  # what is served stays
            else:
                self._said.pop(_UNCHECKED, None)
            # As long as nothing is served, every handshake fails: look each second instead of each `check_seconds`.
            await asyncio.sleep(self._options.check_seconds if self.bundle else min(1.0, self._options.check_seconds))

    async def withdraw_replica(self) -> None:
        """Say that this replica serves nothing any more. Raises nothing: its entry ends by itself."""
        if not self._options.sign or self.bundle is None:
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await retry_on_conflict(self._withdraw, attempts=_ATTEMPTS)
        except (KubeError, TimeoutError) as error:
            log.warning("the Secret still names this replica", error=str(error))

    async def _sign(self) -> Bundle:
        """One round in which we make the certificates; what to serve."""
        options = self._options
        # Before the Secret. Configurations that are read after it may already have a newer CA, and `publish` would take
        # that CA back under a matching resourceVersion.
        published = await trust.read(self._client, options.configurations)
        found = await store.read(self._client, options.namespace, options.secret)
        # After the reads: the API server's time comes with its answers.
        now = self._clock()
        # Two writers of one Secret would replace each other's CA for ever.
        if found.certificate:
            raise CertificatesMissingError(
                f"{options.where} is written by cert-manager (Certificate {found.certificate}): set certificateSource: "
                f"cert-manager, or delete that Certificate and the annotation {store.CERT_MANAGER}"
            )
        if found.misasked:
            self._log_once(f"annotation {store.ROTATE} is not understood: expected leaf or ca", found.misasked)
        # A CA that one webhook lacks is not settled: calls of that webhook would fail.
        self._settling.record_authorities(published.by_all, self._monotonic(), now)
        seen = RoundFindings(
            found.bundle,
            self.bundle,
            published.trusted,
            self._settling.settled(self._monotonic()),
            await self._alive(found, now),
            found.retired,
            found.asked,
        )
        step = advance(seen, options.hosts, now, options.lifetimes)
        chosen = choose(step.bundle, seen, now)
        # Before the caBundle: a crash between the two leaves a CA that the next round publishes. The other way round it
        # leaves a published CA whose key is lost.
        await self._store(found, seen, step, chosen, now)
        if count := await trust.publish(self._client, published, step.bundle.ca_pem):
            log.info("caBundle written", configurations=count, authorities=len(step.bundle.authorities))
            # The time of a new CA counts from this write, not from the next round's read of it.
            self._settling.record_authorities(step.bundle.authorities, self._monotonic(), now)
        if chosen is None:
            raise CertificatesMissingError(
                f"no certificate is served yet: API servers get {options.settle_seconds:g} s to notice the new CA"
            )
        self.published = self.published or (chosen.issuer is not None and may_serve(chosen.issuer, seen))
        return chosen

    async def _store(
        self, found: store.Stored, seen: RoundFindings, step: RotationStep, chosen: Bundle | None, now: datetime
    ) -> None:
        """Write what has changed, and say so."""
        bundle = step.bundle if step.bundle != found.bundle else None
        options = self._options
        # What the Secret shall say of all replicas: this one, the others, and those of CAs that were taken in.
        replicas = dict(seen.replicas)
        # The entry names both CAs: this replica serves the old certificate until this write has succeeded.
        served = [each for each in (self.bundle, chosen) if each is not None and each.issuer is not None]
        if chosen is not None and served:
            needs = tuple(dict.fromkeys(fingerprint(each.issuer) for each in served if each.issuer is not None))
            until = max(each.not_after for each in served)
            replicas[options.replica] = Replica(needs, until, fingerprint(chosen.leaf), options.pod, options.pod_uid)
        if step.adopted:  # what others said of themselves may be lost
            before = replicas.get(UNKNOWN, Replica((), now))
            until = max(before.until, now + options.lifetimes.leaf).replace(microsecond=0)
            replicas[UNKNOWN] = Replica(tuple(dict.fromkeys((*before.needs, *step.adopted))), until)
        annotations = store.annotations_for(found, replicas, step.retired, answered=step.answered)
        if bundle is None and not annotations:
            return
        await store.write(
            self._client, options.namespace, options.secret, found, bundle=bundle, annotations=annotations
        )
        about = ObjectReference(SECRETS.api_version, SECRETS.kind, options.namespace, options.secret, found.uid)
        if step.repaired:
            message = f"The certificates could not be used and were repaired: {step.repaired}"
            log.warning("certificates repaired", secret=options.where, what=step.repaired)
            self._notify(about, "Warning", Reason.CERTIFICATES_REPAIRED, message)
        if step.news:
            log.info("certificates rotated", secret=options.where, what="; ".join(step.news))
            self._notify(about, "Normal", Reason.CERTIFICATES_ROTATED, f"Done: {'; '.join(step.news)}")
        if step.retired != found.retired:
            log.info("an old CA is no longer trusted: every replica serves a newer one", secret=options.where)
            self._notify(
                about, "Normal", Reason.CERTIFICATES_ROTATED, "Every replica serves the new CA; the old one is dropped"
            )

    async def _alive(self, found: store.Stored, now: datetime) -> dict[str, Replica]:
        """The replicas that may still be called. Pods are looked for only where one holds something up."""
        alive = {name: each for name, each in found.replicas.items() if now < each.until}
        try:
            signer = None if found.bundle is None else fingerprint(found.bundle.authorities[0])
        except BundleError:
            signer = None
        for name, each in tuple(alive.items()):
            # A look-up is a call to the API server. It pays only for an entry that keeps an old CA, or at first, for
            # pods that went while nobody looked.
            behind = self.rounds == 0 or set(each.needs) != {signer}
            if each.pod and name != self._options.replica and behind and await self._is_gone(each):
                log.info("a replica is gone", pod=each.pod)
                del alive[name]
        return alive

    async def _is_gone(self, replica: Replica) -> bool:
        """Whether there is no such pod any more; then no Service leads to it."""
        try:
            pod = await self._client.get(PODS, replica.pod, self._options.namespace, type=Object)
        except NotFound:
            return True
        except Forbidden:
            # Without the right to read pods, the entry holds until its certificate ends. An old CA lives longer then,
            # and no call fails.
            return False
        # A pod of the same name with another UID is another process, with an entry of its own.
        return pod.metadata.uid != replica.uid

    async def _withdraw(self) -> None:
        options = self._options
        found = await store.read(self._client, options.namespace, options.secret)
        if options.replica in found.replicas:
            rest = {name: each for name, each in found.replicas.items() if name != options.replica}
            annotations = store.annotations_for(found, rest, found.retired, answered=False)
            await store.write(self._client, options.namespace, options.secret, found, annotations=annotations)

    async def _follow(self) -> Bundle:
        """One round in which somebody else makes the certificates; what to serve."""
        options = self._options
        published = await trust.read(self._client, options.configurations)
        now = self._clock()
        made = await foreign.read(self._client, options, now)
        chosen = foreign.choose(made, self.bundle, published, now)
        trusted = foreign.trusted(chosen, published)
        # Both states end when the cainjector writes; until then the log says what to look at.
        if not trusted or chosen is not made:
            self._log_once("caBundle does not have the CA of the Secret", foreign.advice(options, published))
        self.published = self.published or trusted
        return chosen

    def _log_once(self, what: str, detail: str) -> None:
        """Log what is wrong; the same thing once."""
        if self._said.get(what) != detail:
            log.warning(what, secret=self._options.where, error=detail)
        self._said[what] = detail
