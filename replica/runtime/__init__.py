"""What a replica knows of its host: processes, clocks, signals, usage."""
