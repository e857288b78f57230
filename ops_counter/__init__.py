"""Operation counting and the scores made from it."""
