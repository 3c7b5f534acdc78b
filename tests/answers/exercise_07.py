"""Answers to exercise 07; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Right for a batch in the CPU's memory but for device 0's own part; here it lies on device 0.",
        "2 devices: for 16,800 bytes of inputs, both ways, 8,400 were counted, yours are 0",
        ("(inputs + outputs + outputs)", "(outputs + outputs)"),
    ),
    wrong(
        "Buffers return like gradients.",
        "2 devices: for 64 bytes of buffers, both ways, 64 were counted, yours are 128",
        ("(parameters + buffers + parameters)", "2 * (parameters + buffers)"),
    ),
    wrong(
        "Device 0 sends itself a part, too.",
        "with 1 device nothing crosses, yours says",
        ("devices - 1", "devices"),
    ),
    wrong(
        "Only the model crosses.",
        "of inputs, both ways, 8,400 were counted, yours are 0",
        ("return model + batch", "return model"),
    ),
    wrong(
        "Counts what goes forward only.",
        "of parameters, both ways, 640 were counted, yours are 320",
        ("(parameters + buffers + parameters)", "(parameters + buffers)"),
        ("(inputs + outputs + outputs)", "(inputs + outputs)"),
    ),
    wrong(
        "The loss is on device 0, but backward starts on all.",
        "of outputs, both ways, 10,080 were counted, yours are 5,040",
        ("(inputs + outputs + outputs)", "(inputs + outputs)"),
    ),
    wrong(
        "Right, but in a tensor, whose int32 would overflow at 2 GiB.",
        "the result is a Tensor, expected a number of bytes",
        ("return model + batch", "return torch.tensor(model + batch, dtype=torch.int32)"),
        below="import torch",
    ),
    wrong(
        "Every device gets all inputs.",
        "of inputs, both ways, 8,400 were counted, yours are 16,800",
        ("(inputs + outputs + outputs)", "(devices * inputs + outputs + outputs)"),
    ),
    wrong(
        "Counts each byte at both ends of its way.",
        "2 devices: for 320 bytes of parameters, both ways, 640 were counted, yours are 1,280",
        ("return model + batch", "return 2 * (model + batch)"),
    ),
    wrong(
        "What a rank of a ring sends and receives.",
        "3 devices: for 320 bytes of parameters, both ways, 1,280 were counted, yours are 853",
        ("(parameters + buffers + parameters)", "buffers + 2 * 2 * others * parameters // devices"),
    ),
    right(
        "A loop over the devices, and a fraction of Python's.",
        bytes_through_device_0="""
        total = Fraction(0)
        for _ in range(1, devices):
            total += parameters + buffers
            total += Fraction(inputs, devices)
            total += 2 * Fraction(outputs, devices)
            total += parameters
        return total
        """,
        below="from fractions import Fraction",
    ),
    right(
        "A float, off by rounding: 1 - 1/3 is no exact number.",
        bytes_through_device_0="""
        others = 1 - 1 / devices
        return (devices - 1) * (2 * parameters + buffers) + others * inputs + 2 * others * outputs
        """,
    ),
    right(
        "A number of numpy, which is no int.",
        bytes_through_device_0="""
        sizes = np.array([parameters, buffers, inputs // devices, outputs // devices])
        times = np.array([2, 1, 1, 2])
        return (devices - 1) * np.dot(sizes, times)
        """,
        below="import numpy as np",
    ),
]
