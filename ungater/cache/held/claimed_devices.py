"""What pods ask for by resource claims, and by extended resources for which classes stand; which claims have devices.

Claims are those that are made of templates, and the one that the scheduler makes for a pod's extended resources.
"""

from collections.abc import Callable, Iterable, Sequence
from sys import intern
from typing import Final

from engine.claims.asks import DeviceAsk, ExtendedRequest
from engine.claims.errors import ObjectError
from engine.claims.model import DeviceClass
from engine.claims.read.asks import classes_of, read_ask, text_of
from engine.devices.ledger import COSTLY
from kube.objects import Pod, PodClaimStatus, PodSpec
from kube.pods.device_claims import DeviceClasses, claims_by_template, extended_asks

REMEMBERED: Final = 1024  # what pods ask for that was read
LONGEST: Final = 1 << 16  # characters of what one pod's claims ask for; anybody makes them
UNREAD: Final = (
    "the API server does not serve all that tells of devices (it does from Kubernetes 1.37 on), or not to us"
)

_Wanted = tuple[tuple[str, str, str], ...]  # of each claim its name, its template's, and what it asks for


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
        self._claims: dict[str, str] = {}  # what each asks for
        self._allocated: set[str] = set()
        self._known: set[str] = set()  # DeviceClasses that can be read
        self._asks: dict[tuple[_Wanted, tuple[ExtendedRequest, ...]], DeviceAsk] = {}

    @property
    def reads(self) -> bool:
        """Whether all that tells of devices is read; extended resources count then, whatever nodes publish."""
        return self._reads()

    def of(self, namespace: str, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None) -> DeviceAsk | str | None:
        """What each pod of this spec asks for; None for nothing. A text says why that is not known.

        ``made``: the claims that were made for a pod; what these ask for holds, whatever their template says by now.
        """
        named, extended = claims_by_template(spec), self._extended(spec)
        if isinstance(extended, str):
            return extended
        if not (named or extended):
            return None
        if not self._reads():
            return UNREAD
        found = self._asked(namespace, named, made, extended)
        if isinstance(found, str):
            return found
        if unknown := sorted(classes_of(found) - self._known):
            return f'DeviceClass "{unknown[0]}" is not there'
        return COSTLY if self._refused(found) else found

    def missing(self, pod: Pod) -> DeviceAsk | None:
        """The claims of a pod on its node for which no devices are known yet; those of others are not its own."""
        extended = self._extended_missing(pod)
        if not (pod.spec.resource_claims or extended):
            return None
        statuses = pod.status.resource_claim_statuses or ()
        made = {one.name: one.resource_claim_name for one in statuses}
        named = claims_by_template(pod.spec)
        left = [one for one in named if one[1] and self._waits(pod.metadata.namespace, one[0], made)]
        found = self._asked(pod.metadata.namespace, left, statuses, extended) if left or extended else None
        return found if isinstance(found, DeviceAsk) else None

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
        waits = f"{pod.metadata.namespace}/{name}" not in self._allocated if name else not pod.spec.node_name
        found = self._extended(pod.spec) if waits else ()
        return () if isinstance(found, str) else found

    def _waits(self, namespace: str, name: str, made: dict[str, str | None]) -> bool:
        if name not in made:
            return True
        claim = made[name]
        return bool(claim) and f"{namespace}/{claim}" not in self._allocated

    def _asked(
        self,
        namespace: str,
        named: Sequence[tuple[str, str]],
        made: Iterable[PodClaimStatus] | None,
        extended: tuple[ExtendedRequest, ...],
    ) -> DeviceAsk | str:
        claims = {one.name: f"{namespace}/{one.resource_claim_name}" for one in made or ()}
        wanted = []
        for name, template in named:
            text = self._claims.get(claims.get(name, ""), self._templates.get(f"{namespace}/{template}"))
            if text is None:
                return f'ResourceClaimTemplate "{template}" is not there'
            wanted.append((name, template, text))
        if sum(len(text) for _, _, text in wanted) > LONGEST:
            return f"what they ask for is longer than {LONGEST} characters"
        key = tuple(wanted), extended
        found = self._asks.get(key)
        if found is None:
            try:
                found = read_ask(*key)
            except ObjectError as error:
                return str(error)
            if len(self._asks) >= REMEMBERED:
                self._asks.clear()
            self._asks[key] = found
        return found

    # --- what changes it -----------------------------------------------------------------------------------------

    def set_template(self, key: str, spec: object) -> None:
        """A template came or changed; None: it went."""
        self._set(self._templates, key, spec)

    def set_claim(self, key: str, spec: object, *, allocated: bool) -> bool:
        """A claim came or changed (None: it went); True where it has devices now and had none, or the other way."""
        self._set(self._claims, key, spec)
        before = key in self._allocated
        (self._allocated.add if allocated else self._allocated.discard)(key)
        return before != allocated

    def _set(self, found: dict[str, str], key: str, spec: object) -> None:
        if spec is None:
            found.pop(key, None)
            return
        found[key] = intern(text_of(spec))  # many claims are alike

    def set_class(self, name: str, found: DeviceClass | None) -> None:
        """A DeviceClass came or went."""
        (self._known.discard if found is None else self._known.add)(name)
