"""CosmoFlow of MLPerf HPC: cosmological parameters from the distribution of matter."""

from aiperf_hpc.workloads.cosmoflow.definition import WORKLOAD as WORKLOAD
