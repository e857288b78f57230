"""Training of one network, and credit for the executed samples."""
