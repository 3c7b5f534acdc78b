"""Exercise 07: how many bytes pass through device 0?"""


def bytes_through_device_0(devices: int, parameters: int, buffers: int, inputs: int, outputs: int) -> int:
    """Return the bytes that cross into or out of device 0 in one training step of DataParallel.

    The step: forward on ``devices`` devices, loss on device 0, backward. Everything is copied directly.

    Args:
        devices: how many, 1 or more. The batch size is divisible by it.
        parameters: bytes of all parameters. All are trainable.
        buffers: bytes of all buffers.
        inputs: bytes of the whole batch, which lies on device 0. It needs no gradient.
        outputs: bytes of the model's output for the whole batch.
    """
    # solution: begin
    others = devices - 1
    model = others * (parameters + buffers + parameters)  # out: values; in: gradients
    batch = others * (inputs + outputs + outputs) // devices  # out: inputs, gradients; in: outputs
    return model + batch
    # solution: end
