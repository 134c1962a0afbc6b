"""Which devices each claim has, and which pods have the claim: so that it is known what their going makes free.

Rules
- A claim gives its devices back once all pods that it is reserved for are gone, as Kubernetes deallocates it then. What
  nobody is known to have, and what something other than a pod has, it keeps.
- Until it is deallocated it holds them, whoever is gone. Pods may be *thought away* (`think_away`), and claims whose
  pods are gone, which *linger*, may be thought deallocated (`expect`): then these hold nothing.
"""

from collections.abc import Collection, Container, Iterable, Iterator

from engine.claims.in_use import Use
from engine.claims.model import DeviceId, PoolId

NO_POD = ""  # among the pods of a claim: it is reserved for something else, which nobody evicts


class ClaimHolders:
    """See the module's rules. Pods and claims go by ``namespace/name``."""

    def __init__(self) -> None:
        self._by_pool: dict[PoolId, dict[str, tuple[Use, ...]]] = {}  # and by claim
        self._pools: dict[str, frozenset[PoolId]] = {}  # by claim that has devices
        self._pods: dict[str, frozenset[str]] = {}  # by claim that has devices, whose it is
        self._claims: dict[str, set[str]] = {}  # the other way round
        self._ended: set[str] = set()  # pods with claims that are gone
        self._away: set[str] = set()  # that are thought away
        self._lingering: set[str] = set()  # claims all of whose pods have ended
        self._free: set[str] = set()  # that are thought to hold nothing
        self.expecting = False  # whether those are thought deallocated by now

    # -- what is so -------------------------------------------------------------------------------------------

    def set(self, claim: str, uses: tuple[Use, ...], pods: frozenset[str]) -> frozenset[PoolId]:
        """What a claim has, and whose it is; the pools of what it had or has."""
        before = self._pools.pop(claim, frozenset())
        for pool in before:
            self._by_pool[pool].pop(claim)
            if not self._by_pool[pool]:
                del self._by_pool[pool]
        had = self._pods.pop(claim, frozenset())
        for pod in had:
            self._claims[pod].discard(claim)
        pools = frozenset([one.device[:2] for one in uses])
        for pool in pools:
            self._by_pool.setdefault(pool, {})[claim] = tuple([one for one in uses if one.device[:2] == pool])
        if pools:
            self._pools[claim], self._pods[claim] = pools, pods
            for pod in pods:
                self._claims.setdefault(pod, set()).add(claim)
        # After the claim has its new pods: a pod that keeps it must not lose that it ended. A pod without claims is
        # forgotten, because pods come and go for as long as the controller runs.
        for pod in had:
            if not self._claims[pod]:
                del self._claims[pod]
                self._ended.discard(pod)
                self._away.discard(pod)
        self._look_again([claim])
        return before | pools

    def end_pod(self, pod: str) -> frozenset[PoolId]:
        """A pod is gone, or has finished; the pools of what is held by fewer now."""
        if pod not in self._claims or pod in self._ended:
            return frozenset()
        self._ended.add(pod)
        return self._look_again(self._claims[pod])

    def came(self, pod: str) -> frozenset[PoolId]:
        """A pod is there (again); the pools of what is held by more now."""
        if pod not in self._ended and pod not in self._away:
            return frozenset()
        self._ended.discard(pod)
        self._away.discard(pod)
        return self._look_again(self._claims.get(pod, ()))

    # -- what is thought --------------------------------------------------------------------------------------

    def think_away(self, pod: str) -> frozenset[PoolId]:
        """Think a pod away, until it `came`; the pools of what nobody has then."""
        if pod not in self._claims or pod in self._away:
            return frozenset()
        self._away.add(pod)
        return self._look_again(self._claims[pod])

    def expect(self, *, deallocated: bool) -> frozenset[PoolId]:
        """Think claims that linger deallocated, or no more; the pools of their devices."""
        self.expecting = deallocated
        return self._look_again(self._lingering)

    def _look_again(self, claims: Iterable[str]) -> frozenset[PoolId]:
        turned: set[PoolId] = set()
        # `expect` passes the very set that this loop changes.
        for claim in tuple(claims):
            was, pods = claim in self._free, self._pods.get(claim, frozenset())
            # A claim that is reserved for nobody keeps its devices: nobody's end deallocates it.
            lingers = bool(pods) and pods <= self._ended
            (self._lingering.add if lingers else self._lingering.discard)(claim)
            # Of a claim that lingers only deallocation is a question. Thinking its pods away changes nothing, for they
            # are gone.
            free = self.expecting if lingers else bool(pods) and pods <= self._ended | self._away
            (self._free.add if free else self._free.discard)(claim)
            if was != free:
                turned |= self._pools.get(claim, frozenset())
        return frozenset(turned)

    # -- reading ----------------------------------------------------------------------------------------------

    def __contains__(self, claim: object) -> bool:
        """Whether a claim has devices."""
        return claim in self._pools

    def is_away(self, pod: str) -> bool:
        """Whether a pod is thought away."""
        return pod in self._away

    @property
    def thinking(self) -> bool:
        """Whether anything is thought otherwise than it is."""
        return self.expecting or bool(self._away)

    @property
    def reserved_pods(self) -> Collection[str]:
        """All whom claims with devices are reserved for."""
        return self._claims.keys()

    def pods_of_claim(self, claim: str) -> frozenset[str]:
        """Whom a claim with devices is reserved for."""
        return self._pods.get(claim, frozenset())

    def claims_of(self, pod: str) -> Collection[str]:
        """The claims with devices that are reserved for a pod, in order."""
        return sorted(self._claims.get(pod, ()))

    def uses_of(self, claim: str) -> Iterator[Use]:
        """What a claim has."""
        for pool in sorted(self._pools.get(claim, ())):
            yield from self._by_pool[pool][claim]

    def freed_by(self, pods: Collection[str]) -> dict[str, frozenset[PoolId]]:
        """The claims that would hold nothing without these pods either, with the pools of what they have."""
        found: dict[str, frozenset[PoolId]] = {}
        # A claim that is thought free counts as free already, and must not be given back twice.
        for claim in {claim for pod in pods for claim in self._claims.get(pod, ())} - self._free:
            left = self._pods[claim].difference(pods)
            if not left or left <= self._ended | self._away:
                found[claim] = self._pools[claim]
        return found

    def devices_of(self, pods: Collection[str]) -> Iterator[DeviceId]:
        """What would be given back without these pods; what is only looked at does not count."""
        for claim, pools in self.freed_by(pods).items():
            yield from (one.device for pool in pools for one in self._by_pool[pool][claim] if not one.admin)

    def lingering(self, pools: Collection[PoolId]) -> list[str]:
        """The claims with devices of some pools all of whose pods are gone."""
        return sorted(claim for claim in self._lingering if not self._pools[claim].isdisjoint(pools))

    def vacated(self, driver: str, prefix: str) -> frozenset[str]:
        """The driver's pools in which claims have devices so named, and all of these are thought to hold nothing."""
        found = {pool for claim in self._free for pool in self._pools.get(claim, ()) if pool[0] == driver}
        return frozenset([pool[1] for pool in found if self._vacated(pool, prefix)])

    def _vacated(self, pool: PoolId, prefix: str) -> bool:
        named = {
            claim
            for claim, uses in self._by_pool[pool].items()
            if any(one.device[2].startswith(prefix) for one in uses)
        }
        return bool(named) and named <= self._free

    def of_pool(self, pool: PoolId) -> Iterator[tuple[str, Use]]:
        """(claim, device) for all that is in use of a pool."""
        for claim, uses in self._by_pool.get(pool, {}).items():
            if claim not in self._free:
                yield from ((claim, use) for use in uses)

    def in_use(self, pools: Iterable[PoolId], without: Container[str] = ()) -> list[Use]:
        """All that is in use of some pools, but for what some claims have."""
        held = (entry for pool in pools for entry in self._by_pool.get(pool, {}).items())
        return [use for claim, uses in held if claim not in self._free and claim not in without for use in uses]

    def all(self) -> tuple[dict[str, tuple[Use, ...]], dict[str, frozenset[str]]]:
        """By claim what it has, and whose it is."""
        uses: dict[str, tuple[Use, ...]] = {}
        for of_pool in self._by_pool.values():
            for claim, some in of_pool.items():
                uses[claim] = (*uses.get(claim, ()), *some)
        return uses, dict(self._pods)
