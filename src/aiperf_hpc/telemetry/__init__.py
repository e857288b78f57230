"""Telemetry: utilization, power and energy of a node and its accelerators during a run.

A missing tool or permission is recorded with its reason and never causes a failure.
"""
