"""What was used over time: `fair_use` by each LocalQueue of a ClusterQueue, `cohort_use` by children of a cohort."""
