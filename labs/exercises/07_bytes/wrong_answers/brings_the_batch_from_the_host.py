# rejected: 2 devices: for 16,800 bytes of inputs, both ways, 8,400 were counted, yours are 0
"""Right for a batch in the CPU's memory but for device 0's own part; here it lies on device 0."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    others = devices - 1
    return others * (2 * parameters + buffers) + 2 * others * outputs // devices
