"""Preparing ImageNet, in any of its layouts, as TFRecord shards.

Every image is decoded once, by a decoder that accepts and refuses the same files as those of a run.
Gray and RGB JPEG files are stored as they are; others (CMYK, PNG under a JPEG name) are converted
to RGB JPEG. Other formats of ``Options.stored`` resize images (``stored_image``).
"""

from __future__ import annotations

from functools import partial

from aiperf_hpc.replica.data.imagenet.sources import open_source
from aiperf_hpc.replica.data.sharded.preparation import prepare_shards

prepare = partial(prepare_shards, open_source)
"""See ``prepare_shards``. Raises DatasetError also if the source has no known layout."""
