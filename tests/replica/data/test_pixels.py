"""Bytes that stand for real numbers: the same ones wherever they are made."""

from __future__ import annotations

import numpy as np

from aiperf_hpc.replica.data.base import Pixels, PixelScaling

SCALING = PixelScaling((1 / 58.395, 1 / 57.12), (-123.175 / 58.395, -115.78 / 57.12))


def _pixels() -> Pixels:
    """Every byte is among them."""
    places = np.random.default_rng(1).permutation(8 * 6 * 6 * 2)
    return Pixels(places.astype(np.uint8).reshape(8, 6, 6, 2), SCALING)


def test_a_number_is_its_byte_times_a_factor_plus_an_addend_each_rounded() -> None:
    pixels = _pixels()
    assert set(pixels.bytes.flat) == set(range(256))
    numbers = np.asarray(pixels)
    assert numbers.dtype == np.float32
    assert numbers.shape == pixels.shape
    for channel in range(2):
        scale, shift = (np.float32(values[channel]) for values in SCALING)
        wanted = [np.float32(byte) * scale + shift for byte in pixels.bytes[..., channel].flat]
        assert numbers[..., channel].ravel().tolist() == wanted
    assert np.asarray(pixels, np.float64).dtype == np.float64
