"""Sections of an analysis, which compare several entries; one module per section."""
