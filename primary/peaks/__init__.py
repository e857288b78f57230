"""``aiperf peaks``: the highest rates of this machine, which a roofline is made of.

``replica/engines/peaks.py`` measures devices and ``replica/parallel/allreduce_timing.py``
the all-reduce, each in processes of its own: no framework is imported here.
"""
