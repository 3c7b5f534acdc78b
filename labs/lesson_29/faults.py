"""Planted faults of lesson 29."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    *group_of(
        Fault(
            lab="29_language",
            old="labels_of_all = sum((labels != IGNORED).sum() for _, labels in pieces)\n"
            "        dist.all_reduce(labels_of_all)\n",
            new="labels_of_all = sum((labels != IGNORED).sum() for _, labels in pieces)\n",
            told="whole, step 1: model.embed_tokens.weight: differs by",
        ),
        Fault(
            lab="29_language",
            old="set_requires_gradient_sync(is_reduced)",
            new="set_requires_gradient_sync(True)",
            told="in pieces: a step has {'all_gather'",
        ),
        Fault(
            lab="29_language",
            old="    fully_shard(model, mesh=mesh, mp_policy=policy)  # the rest",
            new="    # the rest",
            told="model.embed_tokens.weight is in no unit of FSDP",
        ),
        Fault(
            lab="29_language",
            old="(self.options.weight_decay, 0.0)",
            new="(self.options.weight_decay, self.options.weight_decay)",
            told="whole, step 1: model.layers.0.input_layernorm.weight: differs by",
        ),
        Fault(
            lab="29_language",
            old="sums[1] += (labels != IGNORED).sum()",
            new="sums[1] += labels.numel()",
            told="whole: the test loss is",
        ),
        Fault(
            lab="29_language",
            old="operation in COSTLY",
            new="operation in ()",
            told="bytes alive after the forward pass: {'none'",
        ),
        Fault(
            lab="29_language",
            old='"reduce_dtype": torch.float32',
            new='"reduce_dtype": torch.bfloat16',
            told="bf16: of the bytes in float32 travel",
        ),
        Fault(
            lab="29_tokens",
            old="    labels[tokens == end] = IGNORED\n",
            new="",
            told="whole, step 1: model.embed_tokens.weight: differs by",
        ),
        Fault(
            lab="29_llama",
            old="        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))\n",
            new="",
            told="the sum of the losses is in torch.bfloat16: cast the logits to float32",
        ),
        Fault(
            lab="29_llama",
            old="mask = same & (",
            new="mask = (",
            told="whole, step 1: model.embed_tokens.weight: differs by",
        ),
        Fault(
            lab="29_llama",
            old='seed_of(seed, "weights", name)',
            new='seed_of(seed, "weights", name, dist.get_rank())',
            told="whole, step 1: model.embed_tokens.weight: differs by",
        ),
        Fault(  # in float32 angles are too coarse: documents depend on their place in the row
            lab="29_llama",
            old="2, dtype=torch.float64, device=device",
            new="2, device=device",
            told="whole, step 1: model.layers.0.self_attn.",
        ),
        Fault(
            lab="29_llama",
            old='"data_offsets": [offset, following]}',
            new='"data_offsets": [0, following]}',
            told="export: model.layers.0.input_layernorm.weight: differs by",
        ),
        run="29_one_step",
    ),
    Fault(
        lab="29_language",
        old="        order.done = self.step\n",
        new="",
        told="from the unbroken run",
        run="29_resume",
        ranks=0,
        launch="python",
        arguments=("--kills", "0"),
    ),
]
