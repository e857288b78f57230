"""The independent recount of a run."""
