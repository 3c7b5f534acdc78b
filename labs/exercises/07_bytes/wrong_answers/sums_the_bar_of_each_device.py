# rejected: 2 devices: for 320 bytes of parameters, both ways, 640 were counted, yours are 1,280
"""Counts each byte at both ends of its way."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    others = devices - 1
    model = others * (2 * parameters + buffers)
    batch = others * (inputs + 2 * outputs) // devices
    return 2 * (model + batch)
