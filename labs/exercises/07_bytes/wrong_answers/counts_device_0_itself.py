# rejected: with 1 device nothing crosses, yours says
"""Device 0 sends itself a part, too."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    return devices * (2 * parameters + buffers) + inputs + 2 * outputs
