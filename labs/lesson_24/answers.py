"""Answers to exercise 24."""

from tests.planted import Right, Wrong

FORWARD = "rpc.rpc_sync(stage.owner(), forward, args=(stage, x))"
GRADS = "grads = [rpc.rpc_sync(stage.owner(), gradients_of, args=(stage, context_id)) for stage in stages]"

ANSWERS = [
    Wrong(
        what="Copies each stage, and runs the copy.",
        old=FORWARD,
        new="stage.to_here()(x)",
        told="ran 1 times on its owner, worker0; 3 ranks used it",
    ),
    Wrong(
        what="Sends the input of a stage without its history.",
        old="args=(stage, x)",
        new="args=(stage, x.detach())",
        told="backward waits for a gradient that nobody sends",
    ),
    Wrong(
        what="Runs forward before the context begins.",
        old="""
        with dist_autograd.context() as context_id:
            for stage in stages:
                x = rpc.rpc_sync(stage.owner(), forward, args=(stage, x))
        """,
        new="""
        for stage in stages:
            x = rpc.rpc_sync(stage.owner(), forward, args=(stage, x))
        with dist_autograd.context() as context_id:
        """,
        told="stage 0 ran in no context: forward was called before the context began",
    ),
    Wrong(
        what="Leaves the calls through references as they were found.",
        old=FORWARD,
        new="stage.rpc_async().forward(x).wait()",
        told="or through `stage.rpc_async()`, whose first call for a reference",
    ),
    Wrong(
        what="Leaves the copy of the second stage.",
        old=FORWARD,
        new=f"{FORWARD} if stage is not stages[1] else stage.to_here()(x)",
        told="stage 1 ran 1 times on its owner, worker1; 3 ranks used it",
    ),
    Wrong(
        what="Calls backward of the loss.",
        old="\ndist_autograd.backward(context_id, [loss])",
        new="loss.backward()",
        told="loss.backward() cannot cross processes",
    ),
    Wrong(
        what="Sums over the batch.",
        old="\nloss = F.cross_entropy(x, y)",
        new='loss = F.cross_entropy(x, y, reduction="sum")',
        told="that is the sum over the batch, not the mean",
    ),
    Wrong(
        what="Returns the loss as a tensor.",
        old="\nreturn loss.item(), grads",
        new="return loss.detach(), grads",
        told="the loss is of type Tensor, expected a float: loss.item()",
    ),
    Wrong(
        what="Asks for the gradients when the context has ended.",
        old=f"\n    {GRADS}\nreturn loss.item(), grads",
        new=f"{GRADS}\nreturn loss.item(), grads",
        told="the context had ended: backward and the reading of gradients both belong inside",
    ),
    Wrong(
        what="Reads .grad.",
        old="gradients[parameter] for",
        new="parameter.grad for",
        told="stage 0, gradient of layer.weight is None: nothing is kept in .grad here",
    ),
    Wrong(
        what="Backward starts at the sum.",
        old="\ndist_autograd.backward(context_id, [loss])",
        new="dist_autograd.backward(context_id, [7 * loss])",
        told="stage 0, gradient of layer.weight is 7 times that of one process",
    ),
    Right(
        what="remote and to_here instead of rpc_sync, gradients asked for all at once.",
        old=(FORWARD, GRADS),
        new=(
            "rpc.remote(stage.owner(), forward, args=(stage, x)).to_here()",
            """
            calls = [rpc.rpc_async(stage.owner(), gradients_of, args=(stage, context_id)) for stage in stages]
            grads = torch.futures.wait_all(calls)
            """,
        ),
    ),
]
