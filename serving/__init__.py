"""/healthz, /readyz and /metrics of a component, and who may read the metrics."""
