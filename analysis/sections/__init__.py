"""What is said of several entries together: a module for each section of an analysis."""
