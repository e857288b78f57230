"""Synthetic weather with embedded cyclones and atmospheric rivers.

It replaces the climate model output behind DeepCAM's masks and the boxes of Extreme Weather
Analytics, with the same layout and kinds of phenomena in samples of any size. It is never presented
as the original data.
"""
