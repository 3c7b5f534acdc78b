# rejected: 2 devices: for 64 bytes of buffers, both ways, 64 were counted, yours are 128
"""Buffers return like gradients."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    others = devices - 1
    return others * 2 * (parameters + buffers) + others * (inputs + 2 * outputs) // devices
