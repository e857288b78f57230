"""Datasets as shards of many samples: read and verified, and prepared where each is a file.

What a sample is, its dataset says: a **SourceFormat** how it is read from the file that it comes
in, a **Codec** how from what a shard stores of it.
"""
