"""Plain data: a job as everything here sees it, its workload's entry, what is stored of it, and what is to be done."""
