"""The surrogate model of the guided search."""
