"""``aiperf peaks``: peak rates of this machine for a roofline.

``replica/engines/peaks.py`` measures devices and ``replica/parallel/allreduce_timing.py``
the all-reduce, each in separate processes: no framework is imported here.
"""
