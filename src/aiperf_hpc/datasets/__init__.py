"""Published and prepared datasets: checksums and manifests."""
