"""DeepCAM of MLPerf HPC: cyclones and atmospheric rivers in the output of a climate model."""
