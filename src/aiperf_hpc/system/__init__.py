"""What a node is: its processors, memory, accelerators, network, storage and software.

Nothing here imports a framework. What cannot be had is absent with a reason.
"""
