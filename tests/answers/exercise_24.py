"""Answers to exercise 24; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

FORWARD = "rpc.rpc_sync(stage.owner(), forward, args=(stage, x))"
PARAMETERS = "stage.local_value().named_parameters()"
GRADS = "grads = [rpc.rpc_sync(stage.owner(), gradients_of, args=(stage, context_id)) for stage in stages]"

ANSWERS = [
    wrong(
        "Copies each stage, and runs the copy.",
        "ran 1 times on its owner, worker0; 3 ranks used it",
        (PARAMETERS, f"{PARAMETERS} if parameter in gradients"),
        (FORWARD, "stage.to_here()(x)"),
    ),
    wrong(
        "Sends the input of a stage without its history.",
        "backward waits for a gradient that nobody sends",
        (PARAMETERS, f"{PARAMETERS} if parameter in gradients"),
        ("stage, x)", "stage, x.detach())"),
    ),
    wrong(
        "Runs forward before the context begins.",
        "stage 0 ran in no context: forward was called before the context began",
        (
            """
            with dist_autograd.context() as context_id:
                for stage in stages:
                    x = rpc.rpc_sync(stage.owner(), forward, args=(stage, x))
            """,
            """
            for stage in stages:
                x = rpc.rpc_sync(stage.owner(), forward, args=(stage, x))
            with dist_autograd.context() as context_id:
            """,
        ),
    ),
    wrong(
        "Calls backward of the loss.",
        "loss.backward() cannot cross processes",
        ("dist_autograd.backward(context_id, [loss])", "loss.backward()"),
    ),
    wrong(
        "Sums over the batch.",
        "that is the sum over the batch, not the mean",
        ("cross_entropy(x, y", 'cross_entropy(x, y, reduction="sum"'),
    ),
    wrong(
        "Returns the loss as a tensor.",
        "the loss is of type Tensor, expected a float: loss.item()",
        ("loss.item()", "loss.detach()"),
    ),
    wrong(
        "Asks for the gradients when the context has ended.",
        "the context had ended: backward and the reading of gradients both belong inside",
        (f"    {GRADS}\nreturn loss.item(), grads", f"{GRADS}\nreturn loss.item(), grads"),
    ),
    wrong(
        "Reads .grad.",
        "stage 0, gradient of layer.weight is None: nothing is kept in .grad here",
        ("name: gradients[parameter] for", "name: parameter.grad for"),
    ),
    wrong(
        "The first call of each reference goes out through rpc_async of the reference.",
        "whose first call for a reference is sent by a thread that has no context",
        (FORWARD, "stage.rpc_async().forward(x).wait()"),
    ),
    wrong(
        "Backward starts at the sum.",
        "stage 0, gradient of layer.weight is 7 times that of one process",
        ("dist_autograd.backward(context_id, [loss])", "dist_autograd.backward(context_id, [7 * loss])"),
    ),
    right(
        "The loss in two parts, and a return inside of the context.",
        ("F.cross_entropy(x, y)", "F.nll_loss(torch.log_softmax(x, dim=1), y)"),
        (
            GRADS,
            """
            grads = [rpc.rpc_sync(stage.owner(), gradients_of, args=(stage, context_id)) for stage in stages]
            return float(loss), grads
            """,
        ),
    ),
    right(
        "remote and to_here instead of rpc_sync, gradients asked for all at once.",
        (FORWARD, "rpc.remote(stage.owner(), forward, args=(stage, x)).to_here()"),
        (
            GRADS,
            """
            calls = [rpc.rpc_async(stage.owner(), gradients_of, args=(stage, context_id)) for stage in stages]
            grads = torch.futures.wait_all(calls)
            """,
        ),
    ),
    right(
        "Calls the stage's own forward through its RRef.",
        (FORWARD, "stage.rpc_sync().forward(x)"),
    ),
]
