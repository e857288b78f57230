"""Runtime of a replica's processes: background jobs, stop signals, stopwatch, telemetry."""
