"""System description of a node: processors, memory, accelerators, network, storage and software.

This package imports no framework. Unavailable values are recorded as absent, with a reason.
"""
