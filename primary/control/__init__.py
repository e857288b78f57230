"""Run control: claim, start, monitor and resume a run."""
