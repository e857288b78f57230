"""DeepCAM of MLPerf HPC: cyclones and atmospheric rivers in the output of a climate model."""

from aiperf_hpc.workloads.deepcam.definition import WORKLOAD as WORKLOAD
