"""Networks of the workloads, layer by layer as in their references."""
