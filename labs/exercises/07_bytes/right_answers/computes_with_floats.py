# accepted: a float, off by rounding
"""The share of the batch that leaves device 0, as a fraction: 1 - 1/3 is no exact number."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> float:
    others = 1 - 1 / devices
    return (devices - 1) * (2 * parameters + buffers) + others * inputs + 2 * others * outputs
