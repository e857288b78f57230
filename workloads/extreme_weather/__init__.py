"""Extreme Weather Analytics of HPC AI500: cyclones and atmospheric rivers found in climate data."""

from aiperf_hpc.workloads.extreme_weather.definition import WORKLOAD as WORKLOAD
