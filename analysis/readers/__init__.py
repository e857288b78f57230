"""Readers of training logs: one module per format, independent of the metrics."""
