"""Planted faults of lesson 25; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "25_profile",
        'if step["ts"] <= one["ts"] < end]',
        'if one["ts"] < end]',
        "numbers, the model has",
    ),
    Fault(
        "25_reader",
        "        compute = without(compute, evaluation)\n",
        "",
        "a step of a CPU",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_reader",
        "found[-1] = (found[-1][0], max(found[-1][1], end))",
        "found[-1] = (found[-1][0], end)",
        "'evaluation': 5.0, 'compute': 35.0",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_reader",
        "data = without(common(window, merged(trace.spans(DATA))), evaluation)",
        "data = common(window, merged(trace.spans(DATA)))",
        "a random step",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_reader",
        "            data = without(data, compute)\n",
        "            pass\n",
        "a step of a GPU",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_reader",
        "median(one.end - other.end for",
        "median(one.start - other.start for",
        "shifts of the clocks",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_reader",
        "entered.index(max(entered))",
        "entered.index(min(entered))",
        "who comes last",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_diagnose",
        "if 2 * late.count(trace.rank) > len(steps):",
        "if late.count(trace.rank) > len(steps):",
        "more data on rank 0",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_diagnose",
        "mean(one[COMMUNICATION] - one[OVERLAP] for one in means)",
        "mean(one[OVERLAP] for one in means)",
        "more communication on all ranks",
        run="25_known",
        ranks=0,
    ),
    Fault(
        "25_known",
        'when = {"ts": 1e3 * (start + clock_ms)',
        'when = {"ts": 1e3 * start',
        "shifts of the clocks",
        ranks=0,
    ),
    Fault("25_slow", "        training.slow_down(part)\n", "        pass\n", "data on rank 1: the tree says"),
    Fault(
        "25_slow",
        "bucket_cap_mb=cfg.bucket_mb",
        "bucket_cap_mb=25",
        "hands over its buckets after backward",
    ),
    Fault(
        "25_flops",
        "matrices = [model.head.weight]",
        "matrices = [model.head.weight, model.tokens.weight]",
        "forward: 2 N D + 4 L H Q T D: torch counts",
        ranks=0,
    ),
    Fault(
        "25_flops",
        "(in_blocks - last)",
        "in_blocks",
        "backward that computes the blocks again: torch counts",
        ranks=0,
    ),
    Fault(
        "25_instruments",
        "repeat=1 if in_time else 0",
        "repeat=1",
        "the second was to be empty",
    ),
    Fault(
        "25_instruments",
        "        gc.disable()\n",
        "        pass\n",
        "by hand, all ranks were to collect in the same steps",
    ),
]

STILL_WITHOUT: list[str] = []
