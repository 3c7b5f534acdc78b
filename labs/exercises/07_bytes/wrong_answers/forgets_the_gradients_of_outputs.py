# rejected: of outputs, both ways, 10,080 were counted, yours are 5,040
"""The loss is on device 0, but backward starts on all."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    others = devices - 1
    return others * (2 * parameters + buffers) + others * (inputs + outputs) // devices
