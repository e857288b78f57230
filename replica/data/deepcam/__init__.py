"""DeepCAM's maps of MLPerf HPC: sixteen fields of a climate model, and each cell's class.

A sample is an HDF5 file of ``climate/data``, float32 (height, width, 16), and ``climate/labels_0``,
integers (height, width): 0 is the background, 1 a tropical cyclone, 2 an atmospheric river. A
network reads (x - min) / (max - min) of each field, by what ``stats.h5`` says.
[mlcommons/hpc, deepcam/src/deepCam/data/cam_hdf5_dataset.py]
"""

from __future__ import annotations

from functools import partial

from aiperf_hpc.replica.data.deepcam.source import prepare_deepcam
from aiperf_hpc.replica.data.deepcam.stored import DeepCAMCodec
from aiperf_hpc.replica.data.sharded import dataset, verification

load = partial(dataset.load, DeepCAMCodec())
prepare = prepare_deepcam
verify = partial(verification.verify, DeepCAMCodec())
