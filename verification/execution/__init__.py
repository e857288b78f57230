"""Re-execution of sampled trials: ``aiperf verify --execute``."""
