"""Answers to exercise 08."""

from tests.planted import Right, Wrong, solved

AVERAGE_IN_BACKWARD = solved("08_small_ddp", "average_in_backward")
START_EQUAL = solved("08_small_ddp", "start_equal")

ANSWERS = [
    Wrong(
        what="Starts the all-reduces and never waits.",
        old="dist.all_reduce(parameter.grad)",
        new="dist.all_reduce(parameter.grad, async_op=True)",
        told="backward 1 ended without waiting for 4 of its all-reduces",
    ),
    Wrong(
        what="Goes by the state dict, which leaves out a buffer that is not persistent.",
        old="[*module.parameters(), *module.buffers()]",
        new="module.state_dict().values()",
        told="buffer in_uint8 (torch.uint8) on rank 1 is not rank 0's, it is still this rank's own",
    ),
    Wrong(
        what="Puts new buffers in place of the old ones.",
        old="tensor.copy_(part.view_as(tensor))",
        new="""
        if isinstance(tensor, nn.Parameter):
            tensor.copy_(part.view_as(tensor))
            continue
        for owner in module.modules():
            for name, buffer in list(owner.named_buffers(recurse=False)):
                if buffer is tensor:
                    setattr(owner, name, part.view_as(tensor).clone())
        """,
        told="buffer in_float32 has a new storage",
    ),
    Wrong(
        what="A tensor hook whose result is thrown away: it averages a copy.",
        old=(
            """
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
            """,
            "register_post_accumulate_grad_hook",
        ),
        new=("dist.all_reduce(parameter / ranks)", "register_hook"),
        told="it is this rank's own: nothing was averaged",
    ),
    Wrong(
        what="Changes a tensor hook's argument in place: an activation may share that gradient.",
        old=(
            """
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
            """,
            "register_post_accumulate_grad_hook",
        ),
        new=(
            """
            dist.all_reduce(parameter)
            parameter /= ranks
            """,
            "register_hook",
        ),
        told="it is neither the mean over the ranks, nor their sum, nor this rank's own",
    ),
    Wrong(
        what="Forgets that some parameters do not learn.",
        old="if parameter.requires_grad:",
        new="if True:",
        told="wrong: RuntimeError: ",
    ),
    Wrong(
        what="Has written the first function only.",
        old=AVERAGE_IN_BACKWARD,
        new="raise NotImplementedError",
        told="start_equal is right; average_in_backward is still to be written",
    ),
    Wrong(
        what="A message for each tensor.",
        old=START_EQUAL,
        new="""
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, src=0)
        """,
        told="took 18 broadcasts and 0 other operations",
    ),
    Wrong(
        what="Hooks the parameters of each layer: a tied weight is averaged twice.",
        old="for parameter in module.parameters():  # a tied one once\n        if parameter.requires_grad:",
        new="for parameter in [p for m in module.modules() for p in m.parameters(recurse=False)]:\n"
        "        if parameter.requires_grad:",
        told="backward 1 made 5 all-reduces for 4 gradients",
    ),
    Wrong(
        what="Forgets to divide.",
        old="parameter.grad /= ranks",
        new="",
        told="it is the sum over the ranks",
    ),
    Wrong(
        what="One message in float64 for all dtypes: a large integer is rounded, on rank 0 too.",
        old=("setdefault(tensor.dtype, [])", "tensor.flatten() for"),
        new=('setdefault("all", [])', "tensor.flatten().double() for"),
        told="buffer norm.num_batches_tracked (torch.int64) on rank 0 is not rank 0's, nor this rank's own",
    ),
    Wrong(
        what="Puts new parameters into the layers.",
        old=START_EQUAL,
        new="""
        for part in module.modules():
            for name, tensor in list(part.named_parameters(recurse=False)):
                copied = tensor.detach().clone()
                dist.broadcast(copied, src=0)
                setattr(part, name, nn.Parameter(copied))
            for buffer in part.buffers(recurse=False):
                dist.broadcast(buffer, src=0)
        """,
        told="the tied weights are two parameters now",
    ),
    Right(
        what="All dtypes travel as bytes in one broadcast, without rounding.",
        old=START_EQUAL,
        new="""
        tensors = [*module.parameters(), *module.buffers()]
        with torch.no_grad():
            parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors]
            flat = torch.cat(parts)
            dist.broadcast(flat, src=0)
            for tensor, part in zip(tensors, flat.split([part.numel() for part in parts]), strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))
        """,
    ),
]
