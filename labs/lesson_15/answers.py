"""Answers to exercise 15."""

from tests.planted import Right, Wrong, solved

BACKWARD = "torch.autograd.backward([y, passed_on], gradients)"

ANSWERS = [
    Wrong(
        what="Calls backward of y alone: what the others ask of x0 is lost.",
        old=BACKWARD,
        new="y.backward(gradients[0])",
        told="the gradient of embed.weight lacks the gradient of x0 from rank 1 and those behind it",
    ),
    Wrong(
        what="A rank in the middle sends back what its own blocks ask of x0, and nothing from behind.",
        old=BACKWARD,
        new="torch.autograd.backward([y, passed_on][: 2 - rank], gradients[: 2 - rank])",
        told="the gradient of embed.weight lacks the gradient of x0 from rank 2",
    ),
    Wrong(
        what="Receives x0 first, which is sent second.",
        old="for arriving in (x, x0):",
        new="for arriving in (x0, x):",
        told="do x and x0 arrive in the order in which they are sent?",
    ),
    Wrong(
        what="Divides the loss by the number of ranks, as if they had different data.",
        old="loss.backward()",
        new="(loss / (last + 1)).backward()",
        told="times too small: nothing is to be averaged here",
    ),
    Wrong(
        what="Waits for no gradient: the first ranks never call backward.",
        old=f"\n{BACKWARD}\n",
        new="""
        if rank > 0:
            x.grad, x0.grad = gradients
        """,
        told="has no gradient: no backward has reached this rank's stage",
    ),
    Wrong(
        what="Sends back the gradient that came, instead of that of its own inputs.",
        old="dist.send(leaf.grad, dst=rank - 1)",
        new="dist.send(leaf.grad if rank == last else gradients[leaf is x0], dst=rank - 1)",
        told="is not that of one process: it is off by",
    ),
    Wrong(
        what="Tells the loss to all ranks.",
        old="return loss.detach()",
        new="""
        loss = loss.detach()
        dist.broadcast(loss, src=last)
        return loss
        """,
        told="it calls broadcast; send and recv are enough",
    ),
    Wrong(
        what="The last rank alone returns something.",
        old="return loss.detach()",
        new="return loss.detach() if rank == last else None",
        told="it returns None on rank 0, expected 0",
    ),
    Right(
        what="Sends and receives both tensors at once, and calls backward for one after the other.",
        old=solved("15_stage", "forward_backward"),
        new="""
        def exchange(call, tensors, peer):
            for work in [call(tensor, peer) for tensor in tensors]:
                work.wait()

        came = [torch.empty_like(like) for _ in range(2)]
        if rank > 0:
            exchange(dist.irecv, came, rank - 1)
        leaves = [tensor.requires_grad_() for tensor in came]
        y, passed_on = stage(*leaves) if rank > 0 else stage(inputs, None)
        if rank == last:
            loss = F.cross_entropy(y, labels)
            loss.backward()
        else:
            exchange(dist.isend, [y.detach(), passed_on.detach()], rank + 1)
            gradients = [torch.empty_like(like) for _ in range(2)]
            exchange(dist.irecv, gradients, rank + 1)
            y.backward(gradients[0], retain_graph=True)
            passed_on.backward(gradients[1])
            loss = y.new_zeros(())
        if rank > 0:
            exchange(dist.isend, [leaf.grad for leaf in leaves], rank - 1)
        return loss.detach()
        """,
    ),
]
