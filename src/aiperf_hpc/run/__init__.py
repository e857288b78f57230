"""The run directory: its files, its journals and the history that is replayed from them."""
