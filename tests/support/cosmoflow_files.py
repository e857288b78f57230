"""CosmoFlow's official files, written from samples."""

from __future__ import annotations

import io
import zlib

from aiperf_hpc.replica.data.cosmoflow import Sample
from aiperf_hpc.replica.data.tfrecord import example, of_bytes, of_floats, write_record


def sample_file(sample: Sample, *, compressed: bool) -> bytes:
    """Return the TFRecord file of a sample."""
    file = io.BytesIO()
    counts = sample.counts.astype("<i2").tobytes()
    write_record(
        file, example({b"x": of_bytes(counts), b"y": of_floats(sample.parameters.tolist())})
    )
    if not compressed:
        return file.getvalue()
    # Without a time, so that the same sample is the same file.
    packer = zlib.compressobj(wbits=31)
    return packer.compress(file.getvalue()) + packer.flush()
