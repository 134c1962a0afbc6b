"""What pods ask for by resource claims that are made of templates, and which claims have devices by now."""

from collections.abc import Callable, Iterable, Sequence
from sys import intern
from typing import Final

from engine.claims.asks import DeviceAsk
from engine.claims.errors import ObjectError
from engine.claims.model import DeviceClass
from engine.claims.read.asks import classes_of, read_ask, text_of
from engine.devices.ledger import COSTLY
from kube.objects import Pod, PodClaimStatus, PodSpec
from kube.pods.device_claims import claims_by_template, made_of_templates

REMEMBERED: Final = 1024  # what pods ask for that was read
LONGEST: Final = 1 << 16  # characters of what one pod's claims ask for; anybody makes them
UNREAD: Final = (
    "the API server does not serve all that tells of devices (it does from Kubernetes 1.37 on), or not to us"
)

_Wanted = tuple[tuple[str, str, str], ...]  # of each claim its name, its template's, and what it asks for


class ClaimedDevices:
    """See the module. A claim and a template are known by ``namespace/name``.

    ``reads``: whether all that tells of devices is read. ``refused``: whether devices are not counted, as that took too
    many steps.
    """

    def __init__(self, reads: Callable[[], bool], refused: Callable[[DeviceAsk], bool]) -> None:
        self._reads = reads
        self._refused = refused
        self._templates: dict[str, str] = {}  # what claims ask for that are made of each
        self._claims: dict[str, str] = {}  # what each asks for
        self._allocated: set[str] = set()
        self._classes: set[str] = set()
        self._asks: dict[_Wanted, DeviceAsk] = {}

    def of(self, namespace: str, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None) -> DeviceAsk | str | None:
        """What each pod of this spec asks for; None for nothing. A text says why that is not known.

        ``made``: the claims that were made for a pod; what these ask for holds, whatever their template says by now.
        """
        named = claims_by_template(spec)
        if not named:
            return None
        if not self._reads():
            return UNREAD
        found = self._asked(namespace, named, made)
        if isinstance(found, str):
            return found
        if unknown := sorted(classes_of(found) - self._classes):
            return f'DeviceClass "{unknown[0]}" is not there'
        return COSTLY if self._refused(found) else found

    def asked(
        self, namespace: str, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None
    ) -> DeviceAsk | str | None:
        """What the claims of such pods ask for that are made of templates, whether there are such devices or not."""
        made_for_it = made_of_templates(spec)
        named = [one for one in claims_by_template(spec) if one[0] in made_for_it]
        return self._asked(namespace, named, made) if named else None

    def missing(self, pod: Pod) -> DeviceAsk | None:
        """The claims of a pod on its node for which no devices are known yet; those of others are not its own."""
        if not pod.spec.resource_claims:
            return None
        statuses = pod.status.resource_claim_statuses or ()
        made = {one.name: one.resource_claim_name for one in statuses}
        named = claims_by_template(pod.spec)
        left = [one for one in named if one[1] and self._waits(pod.metadata.namespace, one[0], made)]
        found = self._asked(pod.metadata.namespace, left, statuses) if left else None
        return found if isinstance(found, DeviceAsk) else None

    def _waits(self, namespace: str, name: str, made: dict[str, str | None]) -> bool:
        if name not in made:
            return True
        claim = made[name]
        return bool(claim) and f"{namespace}/{claim}" not in self._allocated

    def _asked(
        self, namespace: str, named: Sequence[tuple[str, str]], made: Iterable[PodClaimStatus] | None
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
        key = tuple(wanted)
        found = self._asks.get(key)
        if found is None:
            try:
                found = read_ask(key)
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
        (self._classes.discard if found is None else self._classes.add)(name)
