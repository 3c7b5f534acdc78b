"""Planted faults of lesson 14."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="14_top_k",
        old="        corrected = gradient + self.residual\n",
        new="        corrected = gradient.clone()\n",
        told="with error feedback it does not learn",
    ),
    Fault(
        lab="14_top_k",
        old="        return total / ranks\n",
        new="        return total\n",
        told="is neither sent nor kept",
    ),
    Fault(
        lab="14_hooks",
        old="            small /= ranks\n",
        new="            pass\n",
        told="fp16, ours: off by",
    ),
    Fault(
        lab="14_hooks",
        old="small = bucket.buffer().to(dtype)",
        new="small = bucket.buffer().clone()",
        told="fp16, ours: 163,816 of 163,816 bytes",
    ),
    Fault(
        lab="14_power_sgd",
        old="self.errors[p] = matrix - basis @ own_q.T",
        new="self.errors[p] = torch.zeros_like(matrix)",
        told="PowerSGD, step 3: gradient",
    ),
    Fault(
        lab="14_power_sgd",
        old='"qs": {names[p]: q for p, q in self.qs.items()},',
        new='"qs": {},',
        told="resumed with ours, own state: differs",
    ),
    Fault(
        lab="14_local",
        old="            mean_over_ranks(self.params)\n",
        new="            mean_over_ranks(self.params[1:])\n",
        told="local SGD, H = 1, and SGD on the images of all, step 0:",
    ),
    Fault(
        lab="14_local",
        old="shared.grad = shared - own\n",
        new="shared.grad = own - shared\n",
        told="DiLoCo, H = 1, and Nesterov's SGD with 0.7 of the learning rate, step 0:",
    ),
    Fault(
        lab="14_top_k",
        old="values, indices.int())",
        new="values, indices)",
        told="top 10 %: a step sends (18208.0, 2.0) bytes and messages, the formula says",
        run="14_ways",
    ),
    Fault(
        lab="14_top_k",
        old="self.residual = corrected.index_fill(0, indices, 0)",
        new="self.residual = gradient.index_fill(0, indices, 0)",
        told="top 10 %, step 2: differs by",
        run="14_ways",
    ),
]
