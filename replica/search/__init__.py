"""The search worker: grows candidates while the accelerators train."""
