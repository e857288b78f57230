"""The curves of a report, as inline SVG: a file for each family of plots."""
