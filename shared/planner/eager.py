"""The lessons' GPT to the byte: what torch keeps of it for backward, and the peak of a step.

``memory`` counts as publications do, with fused attention or a mask of dropout. The GPT of lesson 16 runs
operation by operation in one dtype, without dropout, and its attention keeps the matrix of scores.
"""

from .memory import FLOAT64, Numbers
from .models import Model

TOKEN = 8  # bytes of a token's number


def kept_by_block(model: Model, rows: int, numbers: Numbers = FLOAT64) -> int:
    """Bytes that a block keeps for backward, for so many sequences.

    As multiples of tokens x width: the input of either norm (2), what comes out of it (2), queries, keys and
    values (3), what goes into the last layer of attention (1), the inputs of GELU and of the layer after it
    (4 and 4). Besides: mean and deviation of either norm, the softmax of the scores, the causal mask.
    """
    tokens = rows * model.context
    of_width = tokens * model.width * (2 + 2 + 3 + 1) + 2 * tokens * model.hidden
    of_scores = tokens * model.heads * model.context
    of_norms = 4 * tokens
    mask = model.context**2  # one byte each
    return (of_width + of_scores + of_norms) * numbers.activation + mask


def peak(model: Model, rows: int, batch: int, numbers: Numbers = FLOAT64) -> int:
    """Bytes besides parameters, whole gradients and optimizer state when most are alive.

    That is in backward, in the MLP of the last block: all blocks still keep what they need. There are the
    gradients of the block's output, of what goes into the last layer, and of that layer and of the head,
    which are not added to what a rank holds yet. ``batch`` sequences were read, and ``rows`` used.
    """
    tokens = rows * model.context
    flowing = tokens * (model.width + model.hidden)
    of_last_layer = model.hidden * model.width + model.width
    of_head = model.vocabulary * model.width
    loss = 2  # the sum, and the mean
    read = batch * model.context * TOKEN + model.context * TOKEN  # tokens, and their places
    kept = model.layers * kept_by_block(model, rows, numbers)
    return kept + (flowing + of_last_layer + of_head + loss) * numbers.activation + read
