"""ImageNet (ILSVRC 2012, or any folder in its layout) as TFRecord shards."""

from __future__ import annotations

from aiperf_hpc.replica.data.imagenet.loading import load, verify
from aiperf_hpc.replica.data.imagenet.prepare import prepare

__all__ = ["load", "prepare", "verify"]
