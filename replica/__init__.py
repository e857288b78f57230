"""The replica: search workers, trainer, engines, data."""
