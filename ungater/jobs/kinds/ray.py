"""Ray clusters: the head group and the groups of workers."""

from ungater.jobs.kinds.rule import Rule

RULE = Rule(group="ray.io", pod_set="ray.io/group")
