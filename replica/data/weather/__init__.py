"""Weather out of formulas, with cyclones and atmospheric rivers planted in it.

It stands in for the output of a climate model that DeepCAM's masks and the boxes of Extreme Weather
Analytics were found in, and is never taken for it: the same layout and the same kind of phenomena,
in samples of any size.
"""
