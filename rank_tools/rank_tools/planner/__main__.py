"""``rank-plan --model 405b --gpus 16384``: layouts that run and fit, what they need, and why others fail."""

import argparse
import json
import math
import os
import sys
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

from .errors import PlanError
from .failures import GPU_HOURS_PER_FAILURE, mean_time_between
from .hardware import GIB, GPUS, Network, by_rule, fsdp_hides_from, gpu_named
from .layout import CHOICES
from .published import checked, table
from .search import (
    DAY_S,
    ERROR_OF_MEMORY,
    ERROR_OUTSIDE,
    UNTOLD,
    Plan,
    Rejected,
    Training,
    nearest_batch,
    propose,
)
from .stack import FSDP2, KERNELS, STACKS, UNFUSED, in_bf16, stack_named
from .step import most_traffic, shares_of_peak, tokens_per_s
from .transformer import MODELS, Experts, Model, model_in, model_named, with_context

BAD_INPUT = 2  # as argparse ends after a wrong option
SLOW_CARD = 12.5e9  # 100 Gb/s
SMALLEST, LARGEST = 1e-12, 1e24  # no product of such numbers leaves the range of a float
SUFFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
SIZES = ("tp", "cp", "pp", "dp", "replicate", "ep", "etp", "micro_batch")
ONE_RUN = {"H800 80GB": "DeepSeek-V3's step is planned at 43 s in its layout and took 20 (arXiv 2412.19437)"}
OWN = ("layers", "width", "heads", "ffn", "vocabulary")
EPILOG = f"""\
examples:
  rank-plan --model 405b --gpus 16384
  rank-plan --config config.json --gpus 96 --gpu h200 --nic 200 --length 4096 --tokens 2T --dollars 2.5
  rank-plan --model 8b --gpus 64 --tp 2 --zero 1 --micro-batch 2 --global-batch 1024 --json

models: {", ".join(MODELS)}
GPUs:   {", ".join(GPUS)}
stacks: {", ".join(STACKS)}
  megatron: fused kernels, TP partly hidden, float32 gradients; nemo: the same with bfloat16 gradients;
  torch: FSDP2, torch.compile; eager: FSDP2 alone; 2023: FSDP, FlashAttention 1; 2021: unfused attention

exit code: 0 if a layout runs and fits, 1 if none does, 2 if an option is wrong
"""


def installed_version() -> str:
    """That of the package. A copied folder is not it, also beside an installed one."""
    try:
        return (
            metadata.version("rank-tools") if __package__.startswith("rank_tools.") else "(a copied folder)"
        )
    except metadata.PackageNotFoundError:
        return "(not installed)"


def number(text: str) -> float:
    """A number above 0, such as 15.6T."""
    try:
        value = float(text[:-1]) * SUFFIXES[text[-1]] if text[-1:] in SUFFIXES else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, such as 900, 2.5 or 15.6T") from None
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    if not SMALLEST <= value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not between {SMALLEST:g} and {LARGEST:g}")
    return value


def whole_number(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no whole number")
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return int(text)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n")


def parser() -> Parser:
    form = argparse.RawDescriptionHelpFormatter
    told = "Plan the training of a transformer on many GPUs."
    cli = Parser(prog="rank-plan", description=told, epilog=EPILOG, formatter_class=form)

    def options(title: str, kind: Any, help_of: dict[str, str]) -> None:
        group = cli.add_argument_group(title)
        for option, text in help_of.items():
            group.add_argument(option, type=kind, help=text)

    cli.add_argument("--version", action="version", version=f"%(prog)s {installed_version()}")
    flags = {
        "--check": "print how far the planner is off for trainings that others have published",
        "--json": "print plans as JSON",
        "--brief": "print three lines: the best plan's memory, what a GPU sends, and seconds",
        "--fp8": "linear layers multiply in FP8",
        "--no-sp": "tensor parallelism without sequence parallelism",
        "--whole-logits": "each rank of TP gathers the logits of the whole vocabulary for the loss",
        "--bf16-parameters": "parameters and their gradients in bfloat16, with no copy in float32",
        "--bf16-adam": "Adam's moments in bfloat16, as torch's AdamW has them for such parameters",
        "--anyway": "show layouts that do not fit into memory, too",
    }
    for option, text in flags.items():
        cli.add_argument(option, action="store_true", help=text)
    names = {
        "--model": "a name of the list below",
        "--config": "a config.json of Hugging Face's transformers",
    }
    options("a model", str, names)
    sizes = {
        "--layers": "of the model",
        "--width": "of the model",
        "--heads": "of the model",
        "--ffn": "of the model",
        "--vocabulary": "of the model",
        "--kv-heads": "(as many as heads)",
        "--experts": "(none)",
        "--chosen": "(2)",
    }
    options("or its sizes", whole_number, sizes)
    amounts = {
        "--length": "tokens of a sequence (the model's own)",
        "--global-batch": "sequences of all ranks in a step (about 4M or 16M tokens)",
        "--gpus": "how many",
        "--node": "GPUs in a node, or in an NVLink domain (8; 72 for gb200 and gb300)",
        "--show": "so many plans (3)",
    }
    options("how much of it", whole_number, amounts)
    numbers = {
        "--tokens": "of the whole training (20 for each parameter)",
        "--peak": "TFLOP/s in bfloat16, dense",
        "--peak8": "TFLOP/s in FP8",
        "--memory": "GiB",
        "--usable": "the share of a GPU's memory that tensors get (0.92)",
        "--bandwidth": "TB/s to its memory",
        "--link": "GB/s to others of its node, in one direction",
        "--gemm": "GEMM efficiency: the share of the peak that large matrix products get",
        "--nic": "Gb/s to other nodes (400)",
        "--logits": "bytes of a logit at the loss: 6 where it stays in bfloat16 (13 or 10 with float32)",
        "--recomputed": "the share of the blocks that --recompute is for (1)",
        "--dollars": "for an hour (2)",
        "--gpu-hours": "between failures of one GPU (as Llama 3 saw)",
        "--save": "seconds that a checkpoint stops all (5)",
        "--restart": "seconds that a failure costs (600)",
    }
    options("numbers such as 2.5 or 15.6T; of a GPU they replace the table's", number, numbers)
    layout = {
        "--tp": "",
        "--cp": "",
        "--pp": "",
        "--dp": "",
        "--replicate": "",
        "--ep": "",
        "--etp": "",
        "--micro-batch": "",
        "--vpp": "stages on a rank",
    }
    options("a layout, as far as it is given", whole_number, layout)
    cli.add_argument("--gpu", default="h100", metavar="NAME")
    cli.add_argument("--stack", default="megatron", choices=list(STACKS))
    cli.add_argument("--attention", choices=list(KERNELS))
    cli.add_argument("--zero", type=int, choices=CHOICES["zero"], help="3: FSDP")
    for option in ("--schedule", "--context", "--recompute"):
        cli.add_argument(option, choices=CHOICES[option[2:]])
    told = "when FSDP adds up gradients: shards each micro-batch and replicas once a step (shards), all each "
    told += "micro-batch (each), all with the last one, whole gradients until then (last)"
    cli.add_argument("--sync", choices=CHOICES["sync"], help=told)
    defaults = {"nic": 400.0, "usable": 0.92, "dollars": 2.0, "save": 5.0, "restart": 600.0, "show": 3}
    cli.set_defaults(gpu_hours=GPU_HOURS_PER_FAILURE, **defaults)
    return cli


def model_of(given: argparse.Namespace) -> Model:
    sizes = [getattr(given, name) for name in OWN]
    if (given.model is not None) + (given.config is not None) + any(sizes) != 1:
        raise PlanError(
            "give one of --model, --config, or --layers with --width, --heads, --ffn, --vocabulary"
        )
    if given.model or given.config:
        if given.kv_heads or given.experts or given.chosen:
            raise PlanError("--kv-heads, --experts and --chosen go with --layers: a named model has its own")
        named = model_named(given.model) if given.model else model_in(given.config)
        return with_context(named, given.length)
    if not all(sizes):
        raise PlanError(f"a model of your own needs all of {', '.join('--' + name for name in OWN)}")
    layers, width, heads, ffn, vocabulary = sizes
    experts = Experts(given.experts, given.chosen or 2, 0, ffn) if given.experts else None
    rest = (given.kv_heads or heads, ffn, vocabulary, given.length or 4096)
    return Model(f"{layers} layers x {width}", layers, width, heads, *rest, experts=experts)


def training_of(given: argparse.Namespace) -> Training:
    """Raises PlanError: a value cannot be."""
    if given.gpus is None:
        raise PlanError("the following arguments are required: --gpus")
    model = model_of(given)
    units = {"peak": 1e12, "peak8": 1e12, "memory": GIB, "bandwidth": 1e12, "link": 1e9, "gemm": 1}
    changed = {name: getattr(given, name) * size for name, size in units.items() if getattr(given, name)}
    gpu = gpu_named(given.gpu, changed)
    if given.anyway:
        gpu = gpu._replace(memory=math.inf)
    if not gpu.gemm <= 1:
        raise PlanError(f"gemm is a share of 1, not {gpu.gemm:g}")
    if given.fp8 and not gpu.peak8:
        raise PlanError(f"{gpu.name} has no FP8")
    chosen: dict[str, Any] = {"fp8": given.fp8, "whole_logits": given.whole_logits}
    chosen |= {"attention": given.attention} if given.attention else {}
    chosen |= {"logits": given.logits} if given.logits else {}
    numbers = stack_named(given.stack).numbers
    chosen["numbers"] = in_bf16(numbers, given.bf16_parameters, given.bf16_adam)
    node = given.node or (72 if given.gpu.lower().startswith("gb") else 8)
    batch = given.global_batch
    if not batch:  # a multiple of what is odd about the GPUs divides in most layouts
        odd = given.gpus // (given.gpus & -given.gpus)
        unit = 64 * odd if odd > 1 else 1
        whole_batch = (2**24 if model.parameters() > 1e11 else 2**22) / model.context
        batch = max(1, round(whole_batch / unit)) * unit
    return Training(
        model,
        given.gpus,
        batch,
        given.tokens or 20.0 * model.parameters(),
        gpu=gpu,
        network=Network(node, given.nic / 8 * 1e9),
        stack=stack_named(given.stack, **chosen),
        usable=given.usable,
        dollars=given.dollars,
        save_s=given.save,
        restart_s=given.restart,
        gpu_hours=given.gpu_hours,
    )


def fixed_of(given: argparse.Namespace) -> dict[str, Any]:
    fixed = {name: getattr(given, name) for name in (*SIZES, *CHOICES) if getattr(given, name) is not None}
    return (
        fixed
        | ({"chunks": given.vpp} if given.vpp else {})
        | ({"recomputed": given.recomputed} if given.recomputed else {})
        | ({"sequence_parallel": False} if given.no_sp else {})
    )


def assumptions(training: Training) -> dict[str, str]:
    """What the numbers rest on, and how far they may be off."""
    gpu, stack, network, numbers = training.gpu, training.stack, training.network, training.stack.numbers
    share, peak, eight = (gpu.gemm8, gpu.peak8, " FP8") if stack.fp8 else (gpu.gemm, gpu.peak, "")
    kernel = "unfused attention" if stack.attention == UNFUSED else f"FlashAttention {stack.attention[-1]}"
    links = (
        f"{network.node} GPUs at {gpu.link / 1e9:.0f} GB/s, nodes at {network.card * 8 / 1e9:.0f} Gb/s a GPU"
    )
    seconds = words_of_seconds(training)
    if gpu.name not in checked():
        known = ONE_RUN.get(gpu.name, "no training on it was held against the plan")
        seconds = f"not known for {gpu.name}: {known}; else {seconds}"
    room = f"{training.usable:.0%} of {gpu.memory / GIB:.0f} GiB"
    room = "all that they need (--anyway)" if math.isinf(gpu.memory) else room
    newer = "; torchtitan since 2025-07 has taken up to 37% less" if numbers == FSDP2 else ""
    logits = f"{stack.logits:g} of a logit{', whole on each rank of TP' if stack.whole_logits else ''}"
    with_unsure = {"unsure": training.model.unsure} if training.model.unsure else {}
    return {
        "compute": f"large GEMMs reach {share:.0%} of {peak / 1e12:,.0f}{eight} TFLOP/s; {kernel}; "
        f"{'fused' if stack.fused else 'eager'} norms and loss; {stack.gaps:.0%} gaps",
        "network": f"{links}, {network.reached:.0%} of it reached; {stack.hidden_tp:.0%} of TP and "
        f"{stack.hidden_ep:.0%} of EP hidden, DP {'hidden' if stack.overlap else 'not hidden'}",
        "hides": words_of_threshold(training),
        "memory": f"{numbers.parameter} bytes of a parameter, {numbers.gradient} of its gradient, "
        f"{numbers.optimizer} of Adam, {logits}; tensors get {room}{newer}",
        "seconds": seconds,
        "error": words_of_memory(training),
        **with_unsure,
    }


def words_of_threshold(training: Training) -> str:
    """From how many tokens FSDP hides on this network, and on one of 100 Gb/s."""
    gpu, network, model = training.gpu, training.network, training.model
    block = blocks_parameters(model)
    here = fsdp_hides_from(block, training.gpus, gpu, network)
    if training.gpus == 1:
        return "nothing is sent on one GPU"
    slow = fsdp_hides_from(block, training.gpus, gpu, replace(network, card=SLOW_CARD))
    at = f"at {network.card * 8 / 1e9:.0f} Gb/s a GPU"
    slower = f", {slow.tokens:,.0f} at 100 Gb/s" if network.card != SLOW_CARD else ""
    return (
        f"FSDP over all GPUs from {here.tokens:,.0f} tokens of a micro-batch on a GPU {at}{slower}: "
        f"8/6 x C / W = {here.by_bytes:,.0f}, C = {here.compute / 1e12:,.0f} TFLOP/s, "
        f"W = {here.wire / 1e9:,.0f} GB/s; a ring of {training.gpus:,} starts late: +{here.by_starts:,.0f}"
    )


def blocks_parameters(model: Model) -> float:
    """The mean of the blocks, of experts all."""
    ends = model.vocabulary * model.width * (1 if model.tied else 2)
    return (model.parameters() - ends) / model.layers


def words_of_memory(training: Training) -> str:
    """How far memory was off, where frameworks' makers and where others measured it."""
    average, low, high, rows = ERROR_OUTSIDE
    return (
        f"memory {ERROR_OF_MEMORY:.0%} on average on benchmarks, {average:.0%} ({low:+.0%} to {high:+.0%}) "
        f"on {rows} runs of others if dtypes, sync and logits are given as in their code, else {UNTOLD:.0%}; "
        f"plans within {training.error:.0%} count as equal, the simplest comes first"
    )


def words_of_seconds(training: Training) -> str:
    """How long it takes beside what is planned."""
    (_, step), (least, most) = training.of_step, training.of_run
    if training.model.experts is not None:
        return f"with experts within a factor of {step:g}"
    others = f"others' steps take 1 to {step:g} times as long, whole trainings {least:g} to {most:g} times"
    return f"tuned benchmarks come within {training.error:.0%}, {others}"


def amount(value: float, unit: str, prefixes: str = "kMBT") -> str:
    """Three digits: 12.3 M dollars, 25.5 GB."""
    power = min(len(prefixes), max(0, int(math.log10(max(value, 1e-9)) // 3)))
    prefix = prefixes[power - 1] if power else ""
    return f"{value / 1000**power:,.3g} {prefix}{' ' if prefix and unit != 'B' else ''}{unit}"


def span(days: float) -> str:
    if days < 1:
        return f"{days * 24:,.3g} hours" if days > 1 / 24 else f"{days * 24 * 60:,.3g} minutes"
    if days < 100:
        return f"{days:,.1f} days"
    return f"{days:,.0f} days" if days < 1000 else amount(days / 365, "years")


def between(low: str, high: str) -> str:
    """``2 to 3 days`` for 2 days and 3 days."""
    value, _, unit = low.partition(" ")
    return f"{value} to {high}" if high.partition(" ")[2] == unit else f"{low} to {high}"


def describe(training: Training, plan: Plan) -> str:
    """A plan in some lines."""
    model, layout, memory, time = training.model, plan.layout, plan.memory, plan.time
    held = ", ".join(f"{kind} {size / GIB:.1f}" for kind, size in asdict(memory).items() if size > 0.05 * GIB)
    parts = ", ".join(f"{name} {value:.2f}" for name, value in asdict(time).items() if value >= 0.005)
    shares = shares_of_peak(model, layout, training.sequences, time.total, training.gpu)
    tokens = tokens_per_s(model, training.sequences, time.total) / layout.ranks
    low, high = training.of_step
    short, long = training.of_run
    days = between(span(plan.days * short), span(plan.days * long))
    dollars = between(amount(plan.dollars * short, "dollars"), amount(plan.dollars * long, "dollars"))
    lines = [
        f"\n{layout}",
        f"memory  {memory.total / GIB:.1f} GiB: {held}",
        *doubts(training, plan),
        f"step    {low * time.total:.3g} to {high * time.total:.3g} s; planned {time.total:.3g}: {parts}",
        f"speed   {tokens / high:,.0f} to {tokens / low:,.0f} tokens/s/GPU; planned {tokens:,.0f}",
        f"MFU     planned, {'; '.join(f'{name}: {share:.1%}' for name, share in shares.items())}",
        f"run     {days}, {dollars} at {training.dollars:g} an hour of a GPU; goodput {plan.goodput:.1%} "
        f"with a checkpoint every {span(plan.interval_s / DAY_S)}",
    ]
    for (dimension, op), (calls, size) in most_traffic(model, layout, training.sequences).items():
        if op != "recv":
            lines.append(f"{dimension:<7} {calls:,} x {op}, {amount(size, 'B', 'kMGTP')} in all")
    return "\n    ".join(lines)


def doubts(training: Training, plan: Plan) -> list[str]:
    """Said of a plan that fits by less than memory is off, and of one that a published run contradicts."""
    left = training.gpu.memory * training.usable - plan.memory.total
    off = ERROR_OUTSIDE[0] * plan.memory.total
    tight = f"tight   {left / GIB:.1f} GiB are left, memory is off by {off / GIB:.1f} on average: measure it"
    refuted = "refuted Mixtral 8x22B reached 4.3% of the peak by FSDP without EP (arXiv 2504.14960): take EP"
    return [tight] * plan.tight + [refuted] * plan.refuted


def brief(training: Training, plans: list[Plan], rejected: list[Rejected]) -> str:
    """The best plan in three lines, or why none runs in one."""
    model, network = training.model, training.network
    at = f"{training.gpus:,} x {training.gpu.name}, {network.card * 8 / 1e9:.0f} Gb/s"
    what = f"{model.name}, {training.sequences:,} x {model.context:,} tokens on {at}"
    if not plans:
        return f"{what}: {reasons(rejected)[0].strip()}"
    plan, (low, high) = plans[0], training.of_step
    memory, time = plan.memory, plan.time
    held = ", ".join(f"{kind} {size / GIB:.1f}" for kind, size in asdict(memory).items() if size > 0.05 * GIB)
    sent: dict[str, float] = {}
    for (dimension, op), (_, size) in most_traffic(model, plan.layout, training.sequences).items():
        if op != "recv":
            ranks, _ = plan.layout.group(dimension, network.node)
            sent[dimension] = sent.get(dimension, 0.0) + by_rule(op, ranks, size)
    bytes_sent = ", ".join(
        f"{name} {amount(size, 'B', 'kMGTP')}" for name, size in sent.items() if size > 1e6
    )
    shown = {name: value for name, value in asdict(time).items() if name in sent or name == "waiting"}
    unhidden = ", ".join(f"{name} {value:.2f} s" for name, value in shown.items() if value >= 0.005)
    lines = [
        f"{what}: {plan.layout}",
        f"{memory.total / GIB:.1f} GiB: {held}; sends {bytes_sent or 'nothing'}",
        *doubts(training, plan),
        f"step {low * time.total:.3g} to {high * time.total:.3g} s; "
        f"communication and waiting add: {unhidden or 'nothing'}",
    ]
    return "\n    ".join(lines)


def reasons(rejected: list[Rejected]) -> list[str]:
    """For each kind of problem how many layouts have it, and the one that is nearest to running."""
    by_kind: dict[str, list[tuple[int, float, str]]] = {}
    for rejection in rejected:
        for problem in rejection.problems:
            far = (len(rejection.problems), problem.off, f"{rejection.layout}: {problem.text}")
            by_kind.setdefault(problem.kind, []).append(far)
    ordered = sorted(by_kind.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [f"    {len(those):5} by {kind}, such as {min(those)[2]}" for kind, those in ordered]


def as_json(training: Training, plans: list[Plan], rejected: list[Rejected]) -> str:
    """All that is said otherwise, unrounded."""
    entries = []
    for plan in plans:
        entry, time = asdict(plan), plan.time.total
        entry["memory"]["total"], entry["time"]["total"] = plan.memory.total, time
        entry["step_s_from_to"] = [time * factor for factor in training.of_step]
        entry["days_from_to"] = [plan.days * factor for factor in training.of_run]
        entry["dollars_from_to"] = [plan.dollars * factor for factor in training.of_run]
        entry["tokens_per_s_and_gpu"] = tokens_per_s(training.model, training.sequences, time) / training.gpus
        entry["mfu"] = shares_of_peak(training.model, plan.layout, training.sequences, time, training.gpu)
        entries.append(entry)
    model = {**asdict(training.model), "parameters": training.model.parameters()}
    sizes = {
        "model": model,
        "gpus": training.gpus,
        "global_batch": training.sequences,
        "tokens": training.tokens,
    }
    assumed = {"assumed": assumptions(training), "error": training.error}
    return json.dumps({**sizes, **assumed, "plans": entries, "rejected": reasons(rejected)}, indent=1)


def main(arguments: list[str] | None = None) -> int:
    """Print plans; return the exit code, see ``--help``."""
    given = parser().parse_args(arguments)
    if given.check:
        print(table())
        return 0
    try:
        training = training_of(given)
        plans, rejected = propose(training, **fixed_of(given))
        batch = nearest_batch(training, rejected)
        changed = not plans and batch is not None
        if changed:
            training = replace(training, sequences=batch or 1)
            plans, rejected = propose(training, **fixed_of(given))
    except PlanError as error:
        print(f"rank-plan: {error}", file=sys.stderr)
        return BAD_INPUT
    if given.json:
        print(as_json(training, plans[: given.show], rejected))
        return 0 if plans else 1
    if given.brief:
        print(brief(training, plans, rejected))
        return 0 if plans else 1
    model, gpus, size = training.model, training.gpus, training.sequences
    how = " (changed so that it divides)" if changed else "" if given.global_batch else " by default"
    steps = training.tokens / (size * model.context)
    between = mean_time_between(gpus, training.gpu_hours) / DAY_S
    print(f"{model.name}: {model.parameters():,} parameters on {gpus:,} x {training.gpu.name}")
    run = f"{amount(training.tokens, 'tokens')}, {steps:,.0f} steps"
    print(f"global batch {size:,} x {model.context:,} tokens{how}; {run}")
    for name, text in {**assumptions(training), "failures": f"one in {span(between)}"}.items():
        print(f"{name:8} {text}")
    for plan in plans[: given.show]:
        print(describe(training, plan))
    print(f"\n{len(plans)} layouts run and fit, {len(rejected)} do not:", *reasons(rejected), sep="\n")
    if batch and not changed:
        print(f"with a global batch of {batch:,} more layouts would run")
    return 0 if plans else 1


def command() -> None:
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as in `rank-plan ... | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    command()
