# accepted: a number of numpy, which is no int
"""All arguments in one vector, and how often each crosses in another one."""

import numpy as np


def bytes_through_device_0(
    devices: int, parameters: int, buffers: int, inputs: int, outputs: int
) -> np.int64:
    others = devices - 1
    sizes = np.array([parameters, buffers, inputs // devices, outputs // devices])
    times = np.array([2, 1, 1, 2])
    return others * np.dot(sizes, times)
