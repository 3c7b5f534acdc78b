"""Planted faults of lesson 24; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "24_context",
        "loss = F.cross_entropy(scores, y)",
        'loss = F.cross_entropy(scores, y, reduction="sum")',
        "differs by",
        run="24_gradients",
    ),
    Fault(
        "24_gradients",
        'HERE["head"] = build(cfg.hidden, 10, HEAD_SEED)',
        'HERE["head"] = build(cfg.hidden, 10, HEAD_SEED - 1)',
        "differs by",
    ),
    Fault("24_train", "lr=rate, momentum", "lr=2 * rate, momentum", "losses: differs by"),
    Fault(
        "24_faults",
        "            _ = self.loss()\n",
        "",
        "an error was expected: RPC ran for more than set timeout",
    ),
    Fault(
        "24_faults",
        "return module.rpc_async().forward(x)",
        "return rpc.rpc_async(module.owner(), forward, args=(module, x))",
        "gradients here and there: (2, 2)",
    ),
]
