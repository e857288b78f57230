"""The ExtremeWeather dataset: maps of a climate model, and boxes about cyclones and rivers in them.

A year is a file of HDF5, ``climo_YYYY.h5``: ``images``, float32 (maps, 16, height, width), and
``boxes`` (maps, 15, 5): first row, first column, last row, last column and class of each, in rows
of -1 where there are fewer. [Racah et al. 2017; extremeweatherdataset.github.io]
"""

from __future__ import annotations

from functools import partial

from aiperf_hpc.replica.data.extremeweather.preparation import prepare as prepare
from aiperf_hpc.replica.data.extremeweather.samples import ExtremeWeatherCodec
from aiperf_hpc.replica.data.sharded import dataset, verification

load = partial(dataset.load, ExtremeWeatherCodec())
verify = partial(verification.verify, ExtremeWeatherCodec())
