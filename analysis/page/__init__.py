"""HTML page of an analysis: one self-contained file without scripts or network access."""
