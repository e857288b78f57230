"""Preparation, reading and verification of datasets stored as shards of many samples.

A **Source** provides the samples for the preparation; a **Codec** defines their format in shards
and in batches.
"""
