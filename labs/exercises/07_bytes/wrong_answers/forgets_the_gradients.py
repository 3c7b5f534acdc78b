# rejected: of parameters, both ways, 640 were counted, yours are 320
"""Counts what goes forward only."""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    others = devices - 1
    return others * (parameters + buffers) + others * (inputs + outputs) // devices
