"""The working side: search workers, trainer, engines, data."""
