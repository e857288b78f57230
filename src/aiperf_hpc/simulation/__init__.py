"""Simulation of runs of any size on one machine: the real code on a virtual clock."""
