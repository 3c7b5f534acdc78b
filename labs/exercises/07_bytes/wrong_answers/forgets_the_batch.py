# rejected: of inputs, both ways, 8,400 were counted, yours are 0
"""Only the model crosses."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    return (devices - 1) * (2 * parameters + buffers)
