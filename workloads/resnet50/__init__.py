"""ResNet-50 v1.5 of HPC AI500: one network that classifies images, trained as it is."""

from aiperf_hpc.workloads.resnet50.definition import WORKLOAD as WORKLOAD
