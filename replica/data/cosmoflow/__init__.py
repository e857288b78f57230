"""CosmoFlow's volumes of MLPerf HPC: counts of particles in cells, and the parameters behind them.

A sample is a TFRecord file of one example, plain or compressed by GZIP: ``x``, int16 in C order,
(side, side, side, 4) with a redshift in each channel, and ``y``, four numbers scaled to [-1, 1].
A network reads ln(1 + x). [mlcommons/hpc, cosmoflow/data/cosmo.py and prepare.py]
"""

from __future__ import annotations

from functools import partial

from aiperf_hpc.replica.data.cosmoflow.codec import CosmoFlowCodec
from aiperf_hpc.replica.data.cosmoflow.source import prepare_cosmoflow
from aiperf_hpc.replica.data.sharded import dataset, verification

load = partial(dataset.load, CosmoFlowCodec())
prepare = prepare_cosmoflow
verify = partial(verification.verify, CosmoFlowCodec())
