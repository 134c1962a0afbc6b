"""What pods ask for by resource claims, and by extended resources for which classes stand; which claims have devices.

Claims are those that are made of templates, those that pods name themselves, and the one that the scheduler makes for a
pod's extended resources.
"""

from collections.abc import Callable, Iterable, Sequence
from sys import intern
from typing import Final

from engine.claims.asks import OWN, DeviceAsk, ExtendedRequest
from engine.claims.errors import ObjectError
from engine.claims.model import DeviceClass
from engine.claims.read.asks import classes_of, read_ask, text_of
from engine.devices.first_fits import aligned
from engine.devices.ledger import COSTLY
from kube.objects import Pod, PodClaimStatus, PodSpec
from kube.pods.device_claims import DeviceClasses, claims_by_template, extended_asks, made_of_templates
from kube.pods.devices import ResourceClaim
from ungater.cache.claims.known_claims import KnownClaim
from ungater.model.job_view import shape_of

REMEMBERED: Final = 1024  # what pods ask for that was read
LONGEST: Final = 1 << 16  # characters of what one pod's claims ask for; anybody makes them
UNREAD: Final = (
    "the API server does not serve all APIs about devices (it does from Kubernetes 1.37 on), or Topogate may not read "
    "them"
)

_Wanted = tuple[tuple[str, str, str], ...]  # of each claim its name, what it is (`Named`), and what it asks for
_Key = tuple[_Wanted, tuple[ExtendedRequest, ...], tuple[str, ...]]


class ClaimedDevices:
    """See the module. A claim and a template are known by ``namespace/name``.

    ``reads``: whether all that tells of devices is read. ``refused``: whether devices are not counted, as that took too
    many steps. ``delegate``: notes that devices give an extended resource where plugins do not.
    """

    def __init__(
        self, reads: Callable[[], bool], refused: Callable[[DeviceAsk], bool], delegate: Callable[[str], object]
    ) -> None:
        self.classes = DeviceClasses()
        self._reads = reads
        self._delegate = delegate
        self._refused = refused
        self._templates: dict[str, str] = {}  # what claims ask for that are made of each
        self._claims: dict[str, KnownClaim] = {}
        self._known: set[str] = set()  # DeviceClasses that can be read
        self._asks: dict[_Key, DeviceAsk] = {}

    @property
    def reads(self) -> bool:
        """Whether all that tells of devices is read; extended resources count then, whatever nodes publish."""
        return self._reads()

    def device_ask_of_spec(
        self, namespace: str, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None
    ) -> DeviceAsk | str | None:
        """What each pod of this spec asks for; None for nothing. A text says why that is not known.

        ``made``: the claims that were made for a pod; what these ask for holds, whatever their template says by now.
        """
        named, extended = claims_by_template(spec), self._extended(spec)
        if isinstance(extended, str):
            return extended
        if not (named or extended):
            return None
        # Counted by half of the objects, pods would be sent to nodes whose devices are taken.
        if not self._reads():
            return UNREAD
        found = self._ask_of_claims(namespace, named, made, extended)
        if isinstance(found, str):
            return found
        # Asked each time: classes come and go, while what is read of claims is remembered.
        if unknown := sorted(classes_of(found) - self._known):
            return f'DeviceClass "{unknown[0]}" does not exist'
        return COSTLY if self._refused(found) else found

    def ask_of_templates(
        self, namespace: str, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None
    ) -> DeviceAsk | str | None:
        """What the claims of such pods ask for that are made of templates, whether there are such devices or not."""
        made_for_it = made_of_templates(spec)
        named = [one for one in claims_by_template(spec) if one[0] in made_for_it]
        return self._ask_of_claims(namespace, named, made, ()) if named else None

    def unknown_devices(self, pod: Pod) -> DeviceAsk | None:
        """The claims of a pod on its node for which no devices are known yet; those of others are not its own."""
        extended = self._extended_missing(pod)
        if not (pod.spec.resource_claims or extended):
            return None
        statuses = pod.status.resource_claim_statuses or ()
        made = {one.name: one.resource_claim_name for one in statuses}
        named = claims_by_template(pod.spec)
        # Claims that pods name themselves are not the pod's own: several may share one.
        left = [
            one
            for one in named
            if not one[1].startswith(OWN) and self._waits_for_claim(pod.metadata.namespace, one[0], made)
        ]
        found = self._ask_of_claims(pod.metadata.namespace, left, statuses, extended) if left or extended else None
        if not isinstance(found, DeviceAsk):
            return None
        return aligned(found, shape_of(pod.spec, pod.metadata.annotations or {}, qos_class=pod.status.qos_class))

    def _extended(self, spec: PodSpec) -> tuple[ExtendedRequest, ...] | str:
        """What each pod of this spec asks for of resources of classes; a text says what is wrong with it."""
        if not self._reads():
            return ()
        try:
            found = extended_asks(spec, self.classes)
        except ValueError as error:
            return str(error)
        for one in found:
            self._delegate(one.resource)
        return found

    def _extended_missing(self, pod: Pod) -> tuple[ExtendedRequest, ...]:
        """The same of a pod whose claim for that has no devices yet. The scheduler makes it before it binds a pod."""
        made = pod.status.extended_resource_claim_status
        name = made.resource_claim_name if made is not None else ""
        waits = not self._is_allocated(f"{pod.metadata.namespace}/{name}") if name else not pod.spec.node_name
        found = self._extended(pod.spec) if waits else ()
        return () if isinstance(found, str) else found

    def _waits_for_claim(self, namespace: str, name: str, made: dict[str, str | None]) -> bool:
        if name not in made:
            return True
        claim = made[name]
        return bool(claim) and not self._is_allocated(f"{namespace}/{claim}")

    def _is_allocated(self, key: str) -> bool:
        known = self._claims.get(key)
        return known is not None and known.allocated

    def _ask_of_claims(
        self,
        namespace: str,
        named: Sequence[tuple[str, str]],
        made: Iterable[PodClaimStatus] | None,
        extended: tuple[ExtendedRequest, ...],
    ) -> DeviceAsk | str:
        claims = {one.name: f"{namespace}/{one.resource_claim_name}" for one in made or ()}
        wanted: list[tuple[str, str, str]] = []
        own: dict[str, None] = {}
        for name, what in named:
            if what.startswith(OWN):
                found = self._of_claim(f"{namespace}/{what.removeprefix(OWN)}")
                own[f"{namespace}/{what.removeprefix(OWN)}"] = None
            else:
                claim, template = self._claims.get(claims.get(name, "")), self._templates.get(f"{namespace}/{what}")
                # A claim that was made keeps what its template said then; the template may have changed since.
                text = claim.text if claim is not None else template
                found = (text,) if text is not None else f'ResourceClaimTemplate "{what}" does not exist'
            if isinstance(found, str):
                return found
            wanted += [(name, what, text) for text in found]
        # Before it is read: parsing what a tenant wrote costs by its length, at each look.
        if sum(len(text) for _, _, text in wanted) > LONGEST:
            return f"what they ask for is longer than {LONGEST} characters"
        key = tuple(wanted), extended, tuple(own)
        ask = self._asks.get(key)
        if ask is None:
            try:
                ask = read_ask(*key)
            except ObjectError as error:
                return str(error)
            # Emptied as a whole: tenants make texts, and what is asked for often is read again in a moment.
            if len(self._asks) >= REMEMBERED:
                self._asks.clear()
            self._asks[key] = ask
        return ask

    def _of_claim(self, key: str) -> tuple[str, ...] | str:
        """What a claim that is there asks for, () where it has devices; a text says why nobody can have it."""
        known, name = self._claims.get(key), key.partition("/")[2]
        if known is None:
            return f'ResourceClaim "{name}" does not exist'
        return known.why_barred(name) or (() if known.allocated else (known.text,))

    # --- what changes it -----------------------------------------------------------------------------------------

    def set_template(self, key: str, spec: object) -> None:
        """A template came or changed; None: it went."""
        if spec is None:
            self._templates.pop(key, None)
        else:
            self._templates[key] = intern(text_of(spec))

    def known_claim(self, key: str) -> KnownClaim | None:
        """A claim, as it is now."""
        return self._claims.get(key)

    def set_claim(self, key: str, found: ResourceClaim | None) -> KnownClaim | None:
        """A claim came, changed or went: what was known of it before."""
        before = self._claims.pop(key, None)
        if found is not None:
            self._claims[key] = KnownClaim.from_claim(found)
        return before

    def record_device_class(self, name: str, found: DeviceClass | None) -> None:
        """A DeviceClass came or went."""
        (self._known.discard if found is None else self._known.add)(name)
