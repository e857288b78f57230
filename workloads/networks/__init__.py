"""Networks of the workloads, layer by layer as their references build them."""
