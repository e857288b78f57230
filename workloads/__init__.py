"""The workloads (one module each), their networks, and their registry."""
