"""Ranking of verified runs by score; other runs are listed separately with the reason."""
