"""What reads training logs: a module for each format, which knows no measure."""
