"""``rank-plan --model 405b --gpus 16384``: layouts that run and fit, what they need, and why others fail."""

import argparse
import math
import sys

from .errors import PlanError
from .failures import GPU_HOURS_PER_FAILURE, mean_time_between
from .flops import RECOMPUTE
from .hardware import GIB, GPUS, Network
from .models import MODELS, model_named
from .search import DAY_S, Plan, Rejected, Training, propose
from .step import REACHED, most_traffic, shares_of_peak, tokens_per_s

BAD_INPUT = 2  # as argparse ends after a wrong option
SIZES = ("tp", "cp", "ep", "pp", "dp", "micro_batch", "chunks")
SUFFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

EPILOG = f"""\
examples:
  rank-plan --model 405b --gpus 16384
  rank-plan --model 405b --gpus 16384 --length 131072 --sequences 128 --tp 8 --pp 16
  rank-plan --model 70b --gpus 512 --tokens 2T --dollars 2.5

models: {", ".join(MODELS)}
GPUs:   {", ".join(GPUS)}

exit code:
  0  a layout runs and fits
  1  none does; what is said tells why
  2  an option is wrong

Memory is what tensors need. Seconds rest on one fitted number, the share of its peak that a GPU reaches in
matrix products (--reached); they leave out slow ranks, reading of data and the optimizer's own time.
"""


def number(text: str) -> float:
    """A number above 0, such as 15.6T."""
    factor = SUFFIXES.get(text[-1:], 1.0)
    try:
        value = float(text[:-1] if text[-1:] in SUFFIXES else text) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, such as 900, 2.5 or 15.6T") from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return value


def whole_number(text: str) -> int:
    """A whole number above 0."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return value


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n")


def parser() -> Parser:
    found = Parser(
        prog="rank-plan",
        description="Plan the training of a transformer on many GPUs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = found.add_argument_group("what is trained")
    what.add_argument("--model", required=True, help="a name of the list below")
    what.add_argument("--length", type=whole_number, help="tokens of a sequence (the model's own)")
    what.add_argument("--sequences", type=whole_number, help="in a batch of all ranks (16M tokens' worth)")
    what.add_argument("--tokens", type=number, default=15.6e12, help="of the whole training (15.6T)")
    on = found.add_argument_group("on what")
    on.add_argument("--gpus", type=whole_number, required=True)
    on.add_argument("--gpu", default="h100", help="a name of the list below (h100)")
    on.add_argument("--node", type=whole_number, default=8, help="GPUs in a node (8)")
    on.add_argument("--card", type=number, default=400.0, help="Gb/s of a GPU to other nodes (400)")
    on.add_argument("--reached", type=number, default=REACHED, help=f"share of the peak ({REACHED})")
    on.add_argument("--dollars", type=number, default=2.0, help="for an hour of a GPU (2)")
    failures = found.add_argument_group("failures")
    failures.add_argument(
        "--gpu-hours",
        type=number,
        default=GPU_HOURS_PER_FAILURE,
        help=f"between failures of one GPU ({GPU_HOURS_PER_FAILURE:,.0f}, as Llama 3 saw)",
    )
    failures.add_argument("--save", type=number, default=5.0, help="seconds a checkpoint stops all (5)")
    failures.add_argument("--restart", type=number, default=600.0, help="seconds a failure costs (600)")
    layout = found.add_argument_group("a layout, as far as it is given")
    for name in SIZES:
        layout.add_argument(f"--{name.replace('_', '-')}", type=whole_number)
    layout.add_argument("--zero", type=int, choices=range(4))
    layout.add_argument("--recompute", choices=RECOMPUTE)
    found.add_argument("--show", type=whole_number, default=3, help="so many plans (3)")
    return found


def training_of(options: argparse.Namespace) -> Training:
    """Raises PlanError: a value cannot be."""
    model = model_named(options.model, options.length)
    if options.gpu not in GPUS:
        raise PlanError(f"there is no GPU {options.gpu!r}: {', '.join(GPUS)}")
    return Training(
        model,
        options.gpus,
        options.sequences or max(1, 2**24 // model.context),
        options.tokens,
        gpu=GPUS[options.gpu],
        network=Network(node=options.node, card=options.card * 1e9 / 8),
        reached=options.reached,
        dollars=options.dollars,
        save_s=options.save,
        restart_s=options.restart,
        gpu_hours=options.gpu_hours,
    )


def fixed_of(options: argparse.Namespace) -> dict[str, int | str]:
    names = (*SIZES, "zero", "recompute")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def describe(training: Training, plan: Plan) -> list[str]:
    """A plan in some lines."""
    model, layout, memory, time = training.model, plan.layout, plan.memory, plan.time
    kinds = ("parameters", "gradients", "optimizer", "activations")
    parts = ", ".join(f"{kind} {getattr(memory, kind) / GIB:.1f}" for kind in kinds)
    seconds = {"computing": time.computing, "bubble": time.waiting}
    for name in ("tp", "cp", "ep", "pp", "dp"):
        seconds[name.upper()] = getattr(time, name)
    shown = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items() if value >= 0.005)
    shares = shares_of_peak(model, layout, training.sequences, time.total, training.gpu)
    used = "; ".join(f"{name}: {model_share:.1%}" for name, (model_share, _) in shares.items())
    tokens = tokens_per_s(model, training.sequences, time.total) / layout.ranks
    lines = [
        f"{layout}",
        f"    memory  {memory.total / GIB:.1f} GiB of {training.gpu.memory / GIB:.0f}: {parts}",
        f"    step    {time.total:.2f} s: {shown}; {tokens:,.0f} tokens/s/GPU",
        f"    MFU     {used}",
        f"    run     {plan.days:.1f} days, {plan.dollars / 1e6:,.1f} M dollars; goodput {plan.goodput:.1%} "
        f"with a checkpoint every {plan.interval_s / 60:.0f} min",
    ]
    for (dimension, op), (calls, size) in most_traffic(model, layout, training.sequences).items():
        if op != "recv":
            lines.append(f"    {dimension:<7} {calls:,} x {op}, {size / 1e9:,.2f} GB in all")
    return lines


def reasons(rejected: list[Rejected]) -> list[str]:
    """For each kind of problem how many layouts have it, and the one that is nearest to running."""
    counts: dict[str, int] = {}
    nearest: dict[str, tuple[tuple[int, float], str]] = {}
    for one in rejected:
        for kind, text, off in one.problems:
            counts[kind] = counts.get(kind, 0) + 1
            far = (len(one.problems), off)
            if kind not in nearest or far < nearest[kind][0]:
                nearest[kind] = (far, f"{one.layout}: {text}")
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [f"    {count:5} by {kind}, such as {nearest[kind][1]}" for kind, count in ordered]


def main(arguments: list[str] | None = None) -> int:
    """Print plans; return the exit code, see ``--help``."""
    options = parser().parse_args(arguments)
    try:
        training = training_of(options)
        plans, rejected = propose(training, **fixed_of(options))
    except PlanError as error:
        print(f"rank-plan: {error}", file=sys.stderr)
        return BAD_INPUT
    model = training.model
    between = mean_time_between(training.gpus, training.gpu_hours)
    steps = training.tokens / (training.sequences * model.context)
    print(
        f"{model.name}: {model.parameters():,} parameters on {training.gpus:,} x {training.gpu.name}, "
        f"{training.sequences:,} sequences of {model.context:,} tokens in a step, {steps:,.0f} steps\n"
        f"a failure every {between / 3600:.1f} h is expected, {DAY_S / between:.1f} a day"
    )
    for plan in plans[: options.show]:
        print("\n" + "\n".join(describe(training, plan)))
    print(f"\n{len(plans)} layouts run and fit, {len(rejected)} do not:")
    print("\n".join(reasons(rejected)))
    return 0 if plans else 1


def command() -> None:
    sys.exit(main())


if __name__ == "__main__":
    command()
