"""REST service for running and finished benchmarks, with access control."""
