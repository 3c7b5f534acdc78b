# rejected: of inputs, both ways, 8,400 were counted, yours are 16,800
"""Every device gets all inputs."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    others = devices - 1
    return others * (2 * parameters + buffers + inputs) + others * 2 * outputs // devices
