"""Pure functions from numbers and training logs to numbers: a module for each kind of measure."""
