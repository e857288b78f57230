"""ImageNet (ILSVRC 2012, or any images in one of its layouts) as TFRecord shards."""
