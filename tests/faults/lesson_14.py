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
        "self.errors[p] = matrix - basis @ own_q.T",
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
        "14_top_k",
        "values, indices.int())",
        "values, indices)",
        "top 10 %: a step sends (18208.0, 2.0) bytes and messages, the formula says",
        run="14_ways",
    ),
    Fault(
        "14_top_k",
        "self.residual = corrected.index_fill(0, indices, 0)",
        "self.residual = gradient.index_fill(0, indices, 0)",
        "top 10 %, step 2: ranks and workers differ",
        run="14_ways",
    ),
    Fault(
        "14_ways",
        "small = flat.to(dtype).div_(dist.get_world_size())",
        "small = flat.to(dtype)",
        "all-reduce, step 0: ranks and workers differ",
    ),
    Fault(
        "14_ways",
        "DiLoCo(params, 4, cfg.outer_lr)",
        "DiLoCo(params, 4)",
        "DiLoCo, H = 4, step 3: ranks and workers differ",
    ),
    Fault(
        "14_ways",
        "PowerSGD(rank)",
        "PowerSGD(rank, feedback=False)",
        "PowerSGD, rank 4, step 1: ranks and workers differ",
    ),
    Fault(
        "14_ways", 'MESSAGES = {"all_reduce": 2,', 'MESSAGES = {"all_reduce": 1,', "all-reduce: a step sends"
    ),
    Fault(
        "14_networks",
        "return Traffic(dense * numbers / NUMEL, 3 * ring)",
        "return Traffic(dense * numbers / NUMEL, ring)",
        "PowerSGD, rank 4: a step sends",
        run="14_ways",
    ),
    Fault(
        "14_networks",
        "8 * size / (network.gbit_per_s * 1e9)",
        "size / (network.gbit_per_s * 1e9)",
        "Ethernet 10G: the all-reduce was not to be among the fastest",
        ranks=0,
    ),
    Fault(
        "14_networks",
        "8 * size / (network.gbit_per_s * 1e9)",
        "1e3 * size / (network.gbit_per_s * 1e9)",
        "Ethernet 100G: the all-reduce was to be among the fastest",
        ranks=0,
    ),
]
