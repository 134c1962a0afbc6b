"""What was used over time: `fair_use` of each LocalQueue of a ClusterQueue, `cohort_use` of the children of a cohort."""
