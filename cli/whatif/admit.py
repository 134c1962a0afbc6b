"""``topogate whatif admit``: would the kubelet of a described machine admit a pod, and which zones would it get.

docs/whatif.md describes both forms. Answers are compared with recorded ones (``expected``) on demand.
"""

from collections import Counter
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from cli.whatif.forms import KubeletForm, MachineForm, NrtForm, PodForm, StateForm
from cli.whatif.links import LinksForm, chosen, with_links
from cli.whatif.machines import from_state, kubelet_of
from cli.whatif.machines import pod_shape as shape_of
from cli.whatif.nrt import doubt, from_nrt
from cli.whatif.output import CaseFile, Cell, Compare, EqualCounts, LinesFormat, LinesOutput, answer_cases
from engine.kubelet.admit import admit, hangs
from engine.kubelet.devices.links import bits
from engine.kubelet.machine import Layout, PodShape, State

HEADINGS = ("Case", "Admitted", "Zones, or why not")

OVERCOMMIT = "node-level-overcommit"  # tag of cases that the plain resource fit would stop
A_SECOND = 6_000_000  # combinations of hints that a kubelet goes through
SLOW_SECONDS = 10


class PredictionSource(StrEnum):
    """What the prediction sees."""

    STATE = "state"
    NRT = "nrt"


class StepAnswer(msgspec.Struct, frozen=True):
    """One merged hint, by kubelet ids of zones; null is no affinity."""

    container: str
    merged: tuple[int, ...] | None
    preferred: bool
    admit: bool


class Expected(msgspec.Struct, frozen=True):
    """The kubelet's own answer, to compare with."""

    admitted: bool
    reason: str = ""
    steps: tuple[StepAnswer, ...] | None = None
    numa_nodes: tuple[int, ...] | None = None


class AdmitForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line; ``machine``, ``kubelet`` and ``state`` go together, ``nrt`` stands alone. The last five say more.

    ``links``: how devices are linked, for either.
    """

    id: str
    pod: PodForm
    machine: MachineForm | None = None
    kubelet: KubeletForm | None = None
    state: StateForm | None = None
    nrt: NrtForm | None = None
    links: LinksForm = {}
    expected: Expected | None = None
    tags: tuple[str, ...] = ()
    history: msgspec.Raw = msgspec.Raw(b"")
    nrt_exact: bool = True
    deterministic: bool = True


class AdmitCase(msgspec.Struct, frozen=True):
    """A valid case in the engine's words."""

    id: str
    layout: Layout
    state: State
    pod: PodShape
    expected: Expected | None
    tags: tuple[str, ...]
    device_ids: dict[str, tuple[str, ...]] = {}
    doubt: str = ""  # why the zones are not believed


class AdmitAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The kubelet's answer as predicted; ``message`` where it refuses.

    ``warning``: where it would take its time, or where zones contradict each other and so decide nothing.

    ``devices``: ids by resource, of those that are chosen by their links or by the rules of XPUs.
    """

    id: str
    admitted: bool
    reason: str
    steps: tuple[StepAnswer, ...]
    numa_nodes: tuple[int, ...]
    from_: PredictionSource = msgspec.field(name="from")
    devices: dict[str, tuple[str, ...]] = {}
    message: str = ""
    warning: str = ""


_forms = msgspec.json.Decoder(AdmitForm)


def decode_admit(line: bytes, source: PredictionSource, options: bool = False) -> AdmitCase:
    """Read one case.

    Raises:
        ValueError: (msgspec's errors are ones) with the field and what was expected there.
    """
    form = _forms.decode(line)
    if source is PredictionSource.NRT:
        if form.nrt is None:
            raise ValueError("nrt: is missing, and --from nrt looks at nothing else")
        known = kubelet_of(form.kubelet) if options and form.kubelet else None
        threads = form.machine.threads_per_core if options and form.machine else 2
        layout, state = from_nrt(form.nrt, known, threads)
    elif form.machine is None or form.kubelet is None or form.state is None:
        raise ValueError("machine, kubelet and state are needed; where there is only nrt, say --from nrt")
    else:
        layout, state = from_state(form.machine, form.kubelet, form.state)
    ids = (
        {name: tuple([each.id for each in some]) for name, some in form.machine.devices.items()} if form.machine else {}
    )
    layout = with_links(layout, form.links)
    why = doubt(layout) if source is PredictionSource.NRT else ""
    return AdmitCase(form.id, layout, state, shape_of(form.pod), form.expected, form.tags, ids, why)


def answer(case: AdmitCase, source: PredictionSource) -> AdmitAnswer:
    """The prediction for a case; where its zones are not believed, no zone refuses the pod."""
    # Zones that contradict each other prove nothing, so they refuse nobody; kube-scheduler's own count still holds.
    if case.doubt:
        return AdmitAnswer(
            id=case.id, admitted=True, reason="", steps=(), numa_nodes=(), from_=source, warning=f"nrt: {case.doubt}"
        )
    admission = admit(case.layout, case.state, case.pod)
    ids = [zone.id for zone in case.layout.zones]

    def named(mask: int) -> tuple[int, ...]:
        return tuple(ids[zone] for zone in bits(mask))

    # A kubelet merges every combination of hints; the engine's closed form does not, so it can tell in advance.
    combinations = hangs(case.layout, case.pod) if admission.steps else 0
    if combinations < A_SECOND * SLOW_SECONDS:
        slow = ""
    else:
        slow = (
            f"to merge {combinations} combinations of hints takes this kubelet about {combinations // A_SECOND} seconds"
        )
    return AdmitAnswer(
        id=case.id,
        admitted=admission.admitted,
        reason=admission.reason,
        steps=tuple(
            StepAnswer(step.container, None if step.merged is None else named(step.merged), step.preferred, step.admit)
            for step in admission.steps
        ),
        numa_nodes=named(admission.zones),
        from_=source,
        devices=chosen(case.layout, admission, case.device_ids),
        message=admission.message,
        warning=slow,
    )


class Agreement(EqualCounts):
    """The kubelet's answers beside ours; ``verdicts``: those that differ."""

    verdicts: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)

    def add(self, case: AdmitCase, given: AdmitAnswer) -> None:
        """Count one case; one without the kubelet's answer is passed over."""
        expected = case.expected
        if expected is None:
            return
        same = given.admitted is expected.admitted
        self.count_answer("verdict", same)
        if OVERCOMMIT not in case.tags:
            self.count_answer("verdict, where the node has room", same)
        # Reasons are compared only where both refuse; a wrong verdict is counted once, above.
        if not expected.admitted and not given.admitted:
            self.count_answer("reason", given.reason == expected.reason)
        self.count_answer("every merged hint", given.steps == (expected.steps or ()))
        if expected.admitted and given.admitted:
            self.count_answer("zones", given.numa_nodes == (expected.numa_nodes or ()))
        if (given.admitted, given.reason) != (expected.admitted, expected.reason):
            self.verdicts[expected.reason or "admitted", given.reason or "admitted"] += 1

    def agreement_table(self) -> RenderableType:
        """What agrees, and which verdicts do not; a sentence where there was nothing to compare."""
        if not self.rows:
            return "Nothing to compare: no case carries the kubelet's answer (expected)."
        agrees = self.counts_table("Compared with the kubelet", "equal", "of", "%")
        if not self.verdicts:
            return agrees
        differs = Table("The kubelet", "predicted", Column("cases", justify="right"))
        for (theirs, ours), count in self.verdicts.most_common():
            differs.add_row(theirs, ours, str(count))
        return Group(agrees, differs)


def command(
    file: CaseFile,
    source: Annotated[
        PredictionSource,
        typer.Option("--from", help="state: machine, kubelet and state of the case; nrt: its nrt alone."),
    ] = PredictionSource.STATE,
    options: Annotated[
        bool,
        typer.Option("--with-options", help="With --from nrt: the kubelet's options and threads a core are known too."),
    ] = False,
    output: LinesOutput = LinesFormat.JSONL,
    compare: Compare = False,
) -> None:
    """Predict whether the kubelet of a machine admits a pod, and from which NUMA zones.

    A case is one line: its id, the pod, and the machine: hardware, kubelet settings and state, or a
    NodeResourceTopology. docs/whatif.md has every field.

    The answers come in the order of the cases, with id, admitted, reason, steps (merged hints), numa_nodes and from. A
    line that is no case is answered with id and error, and the exit status is then 1.
    """
    agreement = Agreement()

    def answer_case(case: AdmitCase) -> AdmitAnswer:
        given = answer(case, source)
        agreement.add(case, given)
        return given

    def decode(line: bytes) -> AdmitCase:
        return decode_admit(line, source, options)

    table = agreement.agreement_table if compare else None
    answer_cases(file, decode, answer_case, output, HEADINGS, _row, done_word="asked", compared=table)


def _row(given: AdmitAnswer) -> tuple[Cell, ...]:
    if given.admitted:
        zones = ", ".join(map(str, given.numa_nodes)) or "any"
        return given.id, Text("yes", "green"), f"{zones} ({given.warning})" if given.warning else zones
    return given.id, Text("no", "yellow"), f"{given.reason}: {given.message}"
