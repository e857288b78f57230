"""Training one network, and crediting what was executed."""
