"""Planted faults of lesson 14; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "14_top_k",
        "        corrected = gradient + self.residual\n",
        "        corrected = gradient.clone()\n",
        "with error feedback it does not learn",
    ),
    Fault("14_top_k", "        return total / ranks\n", "        return total\n", "is neither sent nor kept"),
    Fault("14_hooks", "            small /= ranks\n", "            pass\n", "fp16, ours: off by"),
    Fault(
        "14_hooks",
        "small = bucket.buffer().to(dtype)",
        "small = bucket.buffer().clone()",
        "fp16, ours: 163,816 of 163,816 bytes",
    ),
    Fault(
        "14_power_sgd",
        "self.errors[p] = matrix - one @ own_q.T",
        "self.errors[p] = torch.zeros_like(matrix)",
        "PowerSGD, step 3: gradient",
    ),
    Fault(
        "14_power_sgd",
        "            self.qs[p] = q\n",
        "            self.qs[p] = self.first_q(matrix)\n",
        "PowerSGD, step 3: gradient first.weight",
    ),
    Fault(
        "14_power_sgd",
        '"qs": {names[p]: q for p, q in self.qs.items()},',
        '"qs": {},',
        "resumed with ours, own state: differs",
    ),
    Fault(
        "14_power_sgd",
        "        build_buckets(training)\n",
        "        pass\n",
        "resumed with torch's, own state, after a throwaway pass: differs",
    ),
    Fault(
        "14_local",
        "    flat /= dist.get_world_size()\n",
        "",
        "local SGD, H = 1, and SGD on the images of all, step 0:",
    ),
    Fault(
        "14_local",
        "shared.grad = shared - own\n",
        "shared.grad = own - shared\n",
        "DiLoCo, H = 1, and Nesterov's SGD with 0.7 of the learning rate, step 0:",
    ),
    Fault(
        "14_local",
        "self.outer = torch.optim.SGD(self.shared, lr, momentum=momentum, nesterov=momentum > 0)",
        "self.outer = torch.optim.SGD(self.shared, lr, momentum=momentum)",
        "DiLoCo, H = 1, and Nesterov's SGD with 0.7 of the learning rate, step 0:",
    ),
    Fault(
        "14_ways",
        '"top 0.1 %": ("top-k", top_k(0.001)),',
        '"top 0.1 %": ("top-k", top_k(0.001, feedback=False)),',
        "error feedback was to help",
    ),
    Fault(
        "14_top_k",
        "values, indices.int())",
        "values, indices)",
        "top 1 %: 6,096 bytes a step, the formula says 4,064",
        run="14_ways",
    ),
    Fault("14_ways", 'MESSAGES = {"all_reduce": 2,', 'MESSAGES = {"all_reduce": 20,', "but the model says"),
    Fault("14_hang", '(0.01, "hangs")', '(100, "hangs")', "expected: hangs"),
    Fault(
        "14_torchft",
        'if find_spec("torchft") is None:',
        'if find_spec("torch") is None:',
        "No package metadata was found for torchft",
        ranks=0,
    ),
]

STILL_WITHOUT: list[str] = []
