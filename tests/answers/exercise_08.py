"""Answers to exercise 08; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Starts the all-reduces and never waits.",
        "backward 1 ended without waiting for 3 of its all-reduces",
        ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, async_op=True)"),
    ),
    wrong(
        "Goes by the state dict, which leaves out a buffer that is not persistent.",
        "buffer in_uint8 (torch.uint8) on rank 1 is not rank 0's, it is still this rank's own",
        ("[*module.parameters(), *module.buffers()]", "module.state_dict().values()"),
    ),
    wrong(
        "Puts new buffers in place of the old ones.",
        "buffer in_float32 has a new storage",
        (
            "tensor.copy_(part.view_as(tensor))",
            """
            if isinstance(tensor, nn.Parameter):
                tensor.copy_(part.view_as(tensor))
                continue
            for owner in module.modules():
                for name, buffer in list(owner.named_buffers(recurse=False)):
                    if buffer is tensor:
                        setattr(owner, name, part.view_as(tensor).clone())
            """,
        ),
    ),
    wrong(
        "All ranks agree, but on the mean.",
        "parameter first.weight (torch.float64) on rank 0 is not rank 0's, nor this",
        start_equal="""
        with torch.no_grad():
            for tensor in module.parameters():
                dist.all_reduce(tensor)
                tensor /= dist.get_world_size()
        """,
    ),
    wrong(
        "A tensor hook whose result is thrown away: it averages a copy.",
        "it is this rank's own: nothing was averaged",
        (
            """
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
            """,
            "dist.all_reduce(parameter / ranks)",
        ),
        ("register_post_accumulate_grad_hook", "register_hook"),
    ),
    wrong(
        "Sends the parameters only.",
        "buffer in_float32 (torch.float32) on rank 1 is not rank 0's, it is still this rank's own",
        (", *module.buffers()", ""),
    ),
    wrong(
        "Forgets that some parameters do not learn.",
        "RuntimeError: cannot register a hook on a tensor that doesn't require gradient",
        ("if parameter.requires_grad:", "if True:"),
    ),
    wrong(
        "Lets parameters point into the message.",
        "parameter first.weight has a new storage",
        ("tensor.copy_(part.view_as(tensor))", "tensor.data = part.view_as(tensor)"),
    ),
    wrong(
        "Has written the first function only.",
        "start_equal is right; average_in_backward is still to be written",
        average_in_backward="raise NotImplementedError",
    ),
    wrong(
        "Loops over dtypes in an order that differs by rank, as that of a set may: it follows addresses.",
        "was it rounded, or sent in another order on another rank?",
        ("by_dtype.values()", "list(by_dtype.values())[:: 1 - dist.get_rank() % 2 * 2]"),
    ),
    wrong(
        "A message for each tensor.",
        "took 17 broadcasts and 0 other operations",
        start_equal="""
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, src=0)
        """,
    ),
    wrong(
        "Forgets to divide.",
        "it is the sum over the ranks",
        ("parameter.grad /= ranks", ""),
    ),
    wrong(
        "One message in float64 for all dtypes: a large integer is rounded, on rank 0 too.",
        "buffer norm.num_batches_tracked (torch.int64) on rank 0 is not rank 0's, nor this rank's own",
        ("setdefault(tensor.dtype, [])", 'setdefault("all", [])'),
        ("tensor.flatten() for", "tensor.flatten().double() for"),
    ),
    wrong(
        "Puts new parameters into the layers.",
        "the tied weights are two parameters now",
        start_equal="""
        for part in module.modules():
            for name, tensor in list(part.named_parameters(recurse=False)):
                copied = tensor.detach().clone()
                dist.broadcast(copied, src=0)
                setattr(part, name, nn.Parameter(copied))
            for buffer in part.buffers(recurse=False):
                dist.broadcast(buffer, src=0)
        """,
    ),
    right(
        "All dtypes travel as bytes in one broadcast, without rounding.",
        start_equal="""
        tensors = [*module.parameters(), *module.buffers()]
        with torch.no_grad():
            parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors]
            flat = torch.cat(parts)
            dist.broadcast(flat, src=0)
            for tensor, part in zip(tensors, flat.split([part.numel() for part in parts]), strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))
        """,
    ),
    right(
        "Pickle carries the whole state in two broadcasts: its size, then its bytes.",
        start_equal="""
        tensors = [*module.parameters(), *module.buffers()]
        state = [[tensor.data for tensor in tensors]]
        dist.broadcast_object_list(state, src=0)
        with torch.no_grad():
            for tensor, value in zip(tensors, state[0], strict=True):
                tensor.copy_(value)
        """,
    ),
    right(
        "A tensor hook that returns the mean, before autograd accumulates it.",
        (
            """
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
            """,
            """
            mean = parameter / ranks
            dist.all_reduce(mean)
            return mean
            """,
        ),
        ("register_post_accumulate_grad_hook", "register_hook"),
    ),
]
