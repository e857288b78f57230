"""Datasets as shards of many samples: prepared, read and verified.

A **Source** has the samples that shards are prepared from; a **Codec** is their format in shards
and in batches.
"""
