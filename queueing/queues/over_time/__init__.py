"""What was used over time: `fair_use` by LocalQueues of one ClusterQueue, `cohort_use` by the children of a cohort."""
