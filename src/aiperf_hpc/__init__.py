"""AIPerf-HPC: one benchmark for an AI-HPC machine of any size, by automated machine learning."""

__version__ = "0.1.0"
