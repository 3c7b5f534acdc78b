# rejected: 3 devices: for 320 bytes of parameters, both ways, 1,280 were counted, yours are 853
"""What a rank of a ring sends and receives."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    others = devices - 1
    ring = 2 * 2 * others * parameters // devices
    return ring + others * buffers + others * (inputs + 2 * outputs) // devices
