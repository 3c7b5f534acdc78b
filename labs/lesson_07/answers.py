"""Answers to exercise 07."""

from tests.planted import Right, Wrong, solved

BYTES_THROUGH_DEVICE_0 = solved("07_bytes", "bytes_through_device_0")

ANSWERS = [
    Wrong(
        what="Right for a batch in the CPU's memory but for device 0's own part; here it lies on device 0.",
        old="(inputs + outputs + outputs)",
        new="(outputs + outputs)",
        told="2 devices: for 16,800 bytes of inputs, both ways, 8,400 were counted, yours are 0",
    ),
    Wrong(
        what="Buffers return like gradients.",
        old="(parameters + buffers + parameters)",
        new="2 * (parameters + buffers)",
        told="2 devices: for 64 bytes of buffers, both ways, 64 were counted, yours are 128",
    ),
    Wrong(
        what="Device 0 sends itself a part, too.",
        old="devices - 1",
        new="devices",
        told="with 1 device nothing crosses, yours says",
    ),
    Wrong(
        what="Counts what goes forward only.",
        old=("(parameters + buffers + parameters)", "(inputs + outputs + outputs)"),
        new=("(parameters + buffers)", "(inputs + outputs)"),
        told="of parameters, both ways, 640 were counted, yours are 320",
    ),
    Wrong(
        what="Right, but in a tensor, whose int32 would overflow at 2 GiB.",
        old="return model + batch",
        new="return torch.tensor(model + batch, dtype=torch.int32)",
        told="the result is a Tensor, expected a number of bytes",
        below="import torch",
    ),
    Right(
        what="A float, off by rounding: 1 - 1/3 is no exact number.",
        old=BYTES_THROUGH_DEVICE_0,
        new="""
        others = 1 - 1 / devices
        return (devices - 1) * (2 * parameters + buffers) + others * inputs + 2 * others * outputs
        """,
    ),
]
