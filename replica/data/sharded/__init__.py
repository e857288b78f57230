"""Datasets of a file a sample, as shards of several: prepared, read, verified.

What a sample is, its dataset says: a **SourceFormat** how it is read from the file that it comes
in, a **Codec** how from what a shard stores of it.
"""
