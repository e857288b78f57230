"""One replica on several ranks: their collectives, how they meet and how they fail."""
