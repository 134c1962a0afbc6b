"""What was used over time: `fair_use` by the LocalQueues of a ClusterQueue, `cohort_use` by those of a cohort."""
