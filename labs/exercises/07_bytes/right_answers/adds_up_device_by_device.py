# accepted: a loop over devices, and a fraction of Python's
"""Walks through the devices, as the picture does."""

from fractions import Fraction


def bytes_through_device_0(
    devices: int, parameters: int, buffers: int, inputs: int, outputs: int
) -> Fraction:
    total = Fraction(0)
    for _ in range(1, devices):
        total += parameters + buffers
        total += Fraction(inputs, devices)
        total += 2 * Fraction(outputs, devices)
        total += parameters
    return total
