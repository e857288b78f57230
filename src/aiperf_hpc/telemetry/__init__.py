"""What a node and its accelerators do and draw while a run lasts.

A missing tool or permission is a label with its reason, never a failure.
"""
