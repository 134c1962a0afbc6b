"""StatefulSets and ReplicaSets, which make pods that are all alike."""

from ungater.jobs.kinds.rule import Rule

RULE = Rule(group="apps")
