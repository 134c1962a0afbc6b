"""What the API kinds share: base models, the types of fields, and the marks that OpenAPI needs for Kubernetes.

Rules
- A field that may be absent is ``X | None = None``: absent, never null.
- Whatever a CEL rule reaches is bounded (``max_length``), or the API server cannot bound the rule's cost.
- What the schema can say is a type here and so holds in Python too; what only CEL can say holds in the API server.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from crds.constants import API_VERSION

CEL = "x-kubernetes-validations"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"

Schema = dict[str, Any]

ATOMIC: Schema = {LIST_TYPE: "atomic"}
SET: Schema = {LIST_TYPE: "set"}
ATOMIC_MAP: Schema = {MAP_TYPE: "atomic"}


def by_key(*keys: str) -> Schema:
    """Mark of a list whose entries are told apart by these fields."""
    return {LIST_TYPE: "map", LIST_KEYS: list(keys)}


def cel(*rules: tuple[str, str]) -> Schema:
    """Mark of a schema with CEL rules: (rule, message for the person whose object is refused)."""
    return {CEL: [{"rule": rule, "message": message} for rule, message in rules]}


_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_QUALIFIED = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUANTITY = (
    # The pattern that controller-gen writes for resource.Quantity, without the minus sign.
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
LABEL_KEY_PATTERN = f"^({_SUBDOMAIN}/)?{_QUALIFIED}$"
LABEL_VALUE_PATTERN = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"

LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=f"^{_SUBDOMAIN}$")]
LabelName = Annotated[str, Field(min_length=1, max_length=63, pattern=f"^{_DNS_LABEL}$")]
ResourceName = LabelKey
PodSetName = LabelName
Uid = Annotated[str, Field(max_length=128)]
# The bounds of a condition's type, reason and message are those of metav1.Condition.
Message = Annotated[str, Field(max_length=32_768)]
Count = Annotated[int, Field(ge=0, le=2_147_483_647)]
Priority = Annotated[int, Field(ge=-2_147_483_648, le=2_147_483_647)]
# A non-negative Kubernetes quantity; kept as it was written, `engine.quantity.parse` makes an integer of it.
Quantity = Annotated[
    str | int,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": _QUANTITY,
            # For integers; the pattern keeps the minus out of texts.
            "minimum": 0,
            "maxLength": 64,
        }
    ),
]

Counts = dict[str, Quantity]
# As many as Kueue's ResourceFlavor takes.
NodeLabels = Annotated[dict[str, LabelValue], Field(max_length=8, json_schema_extra=ATOMIC_MAP)]


class ApiModel(BaseModel):
    """Base of everything in the API: camelCase outside, snake_case inside, docstrings become descriptions."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        # A field of a newer version is passed over, so that an older process reads what a newer one wrote.
        extra="ignore",
    )

    def to_wire(self) -> dict[str, Any]:
        """JSON form with what was set and nothing else; the API server fills in defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


class Column(NamedTuple):
    """One column of `kubectl get`; those with a priority above 0 are shown with ``-o wide`` only."""

    name: str
    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    priority: int = 0


AGE = Column("Age", ".metadata.creationTimestamp", "date")


def condition_column(name: str, condition: str, field: str, *, priority: int = 0) -> Column:
    """A column that shows one field (status, reason or message) of one condition."""
    path = f'.status.conditions[?(@.type=="{condition}")].{field}'
    return Column(name, path, "string", priority)


class Definition(NamedTuple):
    """What a CustomResourceDefinition says besides the schema."""

    plural: str
    singular: str
    short_names: tuple[str, ...]
    namespaced: bool
    columns: tuple[Column, ...]
    status: bool = True  # whether status is a part of its own, which others write than write the rest


class ObjectMeta(ApiModel):
    """The metadata that Topogate reads; what else the API server sends is kept as it is."""

    model_config = ConfigDict(extra="allow")

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)


class ApiObject(ApiModel):
    """Base of the kinds. A kind declares ``definition`` and, mostly, ``spec`` and ``status``."""

    definition: ClassVar[Definition]

    api_version: Literal["topogate.dev/v1alpha1"] = "topogate.dev/v1alpha1"
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    def to_wire(self) -> dict[str, Any]:
        """JSON form, with apiVersion and kind."""
        return {"apiVersion": API_VERSION, "kind": type(self).__name__} | super().to_wire()

    @classmethod
    def from_wire(cls, value: dict[str, Any]) -> Self:
        """The object that the API server sent. Raises pydantic.ValidationError where it is of another shape."""
        return cls.model_validate(value)


class Condition(ApiModel):
    """One observation of an object's state, with a reason for programs and a message for people."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=LABEL_KEY_PATTERN)]
    """The type of the condition, such as `Admitted`."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """The reason for the status, in one word."""
    message: Message
    """The reason for the status, for people."""
    last_transition_time: datetime
    """When the status last changed."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that was observed."""


# By type: a writer that applies one condition leaves those of others as they are.
Conditions = Annotated[list[Condition], Field(max_length=16, json_schema_extra=by_key("type"))]


class LabelSelectorRequirement(ApiModel):
    """One requirement of a label selector."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                (
                    "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
                    " : !has(self.values) || size(self.values) == 0"
                ),
                "values are required with In and NotIn, and must be empty with Exists and DoesNotExist",
            )
        )
    )

    key: LabelKey
    """The label key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the value of the label relates to values."""
    values: Annotated[list[LabelValue], Field(max_length=64, json_schema_extra=ATOMIC)] | None = None
    """The values. Required with In and NotIn."""


class LabelSelector(ApiModel):
    """A label selector; an empty one selects everything."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = None
    """Labels that must have exactly these values."""
    match_expressions: (
        Annotated[list[LabelSelectorRequirement], Field(max_length=64, json_schema_extra=ATOMIC)] | None
    ) = None
    """Requirements, all of which must hold."""


TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Taint(ApiModel):
    """A node taint."""

    key: LabelKey
    """The key of the taint."""
    value: LabelValue | None = None
    """The value of the taint."""
    effect: TaintEffect
    """The effect on pods that do not tolerate the taint."""


class Toleration(ApiModel):
    """A pod toleration."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
                "operator must be Exists if key is empty: it then tolerates every taint",
            ),
            (
                "!has(self.operator) || self.operator != 'Exists' || !has(self.value)",
                "value must be absent if operator is Exists",
            ),
            (
                "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                "effect must be NoExecute if tolerationSeconds is set",
            ),
        )
    )

    key: LabelKey | None = None
    """The key of the taint. If absent, it matches all keys."""
    operator: Literal["Equal", "Exists"] | None = None
    """How the value is compared. Defaults to Equal."""
    value: LabelValue | None = None
    """The value of the taint, with operator Equal."""
    effect: TaintEffect | None = None
    """The effect of the taint. If absent, it matches all effects."""
    toleration_seconds: int | None = None
    """How long a taint with effect NoExecute is tolerated."""


StopPolicy = Literal["None", "Hold", "HoldAndDrain"]


class ResourceUsage(ApiModel):
    """How much of one resource is used."""

    name: ResourceName
    """The resource."""
    total: Quantity | None = None
    """The total quantity in use, including borrowed quota."""
    borrowed: Quantity | None = None
    """The quantity that is borrowed from the cohort above."""


class FlavorUsage(ApiModel):
    """How much of one flavor is used."""

    name: ObjectName
    """The ResourceFlavor."""
    resources: Annotated[list[ResourceUsage], Field(max_length=64, json_schema_extra=by_key("name"))]
    """The usage of each resource."""


FlavorUsages = Annotated[list[FlavorUsage], Field(max_length=256, json_schema_extra=by_key("name"))]


class QueueNumbers(ApiModel):
    """What queues and cohorts report."""

    conditions: Conditions | None = None
    """The conditions. `Active` says whether workloads can be admitted here, and if not, why."""
    pending_workloads: Count | None = None
    """The number of workloads that are waiting."""
    reserving_workloads: Count | None = None
    """The number of workloads that hold quota and have not finished."""
    admitted_workloads: Count | None = None
    """The number of workloads that are admitted and have not finished."""
    flavors_reservation: FlavorUsages | None = None
    """The quota that is reserved, by flavor."""


class QueueStatus(QueueNumbers):
    """What cluster queues and local queues both report."""

    flavors_usage: FlavorUsages | None = None
    """The quota that admitted workloads use, by flavor."""
