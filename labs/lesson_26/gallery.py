"""The gallery: every case broken and cured in one launch, and tables by what you see.

Run it:  python labs/lesson_26/gallery.py
or:      python labs/lesson_26/gallery.py CASE ...
or:      python labs/lesson_26/gallery.py --write notebooks/failures.md    writes the page; no hand edits it
or:      torchrun --standalone --nproc-per-node=2 labs/lesson_26/gallery.py CASE [--cured]
"""

import os
import re
import sys
import tomllib
from pathlib import Path

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import read_environment
from shared.runtime.results import ROOT
from shared.runtime.run import run

from lesson_26 import (
    cut_models,
    divided,
    hidden,
    loops,
    on_call,
    resuming,
    sharded,
    starting,
    training,
    waiting,
    wrong,
)
from lesson_26.stage import ERROR, HANG, WRONG, Case, Config, act, rows_of

MODULES = (waiting, starting, training, divided, sharded, loops, cut_models, resuming, hidden, on_call, wrong)
CASES = [case for module in MODULES for case in module.CASES]
SOURCED = tomllib.loads(Path(__file__).with_name("sourced.toml").read_text(encoding="utf-8"))["failures"]
SOURCED_PARTS = {
    "nccl": "nccl and the network",
    "gpu": "GPUs, drivers, memory",
    "start": "Start, stores, processes",
    "training": "Slow or wrong",
}
NOTEBOOKS = ROOT / "notebooks"
TITLES = {
    HANG: "Nothing moves",
    ERROR: "An error, or an exit code",
    WRONG: "No error, but something is wrong",
}
FIRST = {
    HANG: "Find what you see in this list:\n\n"
    "- **Nothing is printed, even with `PYTHONUNBUFFERED=1`.** On several nodes torchrun waits for the "
    "others, until `RendezvousTimeoutError` ([lesson 27](27_many_machines.ipynb)) or `DistStoreError: Timed "
    "out after N seconds waiting for clients`. On one node, `py-spy dump` a rank. In `file_baton.py: wait` "
    "(not in torch 2.15): a killed build left a lock; end all builds, then delete "
    "`~/.cache/torch_extensions/*/*/lock` "
    "([pytorch #189245](https://github.com/pytorch/pytorch/issues/189245)). In an import or an `open`: the "
    "disk or mount is slow or hangs.\n"
    "- **No rank gets out of `init_process_group`.** Look up `waiting for clients` and "
    "`The client socket has timed out` among the [errors](#an-error-or-an-exit-code).\n"
    "- **The ranks stand still.** Ask which call each rank is in. [`rank-doctor`](tools.md) tells you for a "
    "job that it starts, `py-spy dump --pid PID` for a process that was started without it, NCCL's RAS for a "
    "job on GPUs ([five steps](26_when_it_hangs.ipynb#At-three-in-the-morning)). Over nccl a stack shows "
    "the next synchronization (`.item()`) in place of the call: take the call from the recorder or RAS. "
    "The tables: all ranks [in one call](#in-one-call), ranks [in different calls](#in-different-calls), "
    "some ranks [in no call](#some-in-a-call-the-others-in-none). One rank in the loader: "
    "[start, stores](#start-stores-processes); in `torch/_dynamo`: [slow or wrong](#slow-or-wrong).\n"
    "- **All ranks are in one call over nccl, and none is missing.** Compare the shapes, then ask the "
    "machines ([lesson 26](26_when_it_hangs.ipynb#All-ranks-have-made-the-same-call)), and look at "
    "[nccl and the network](#nccl-and-the-network).\n"
    "- **A time-out has ended the job.** Its text is the same for all hangs; on gloo each rank's traceback "
    "(`[rank0]:`) names the line in which it waited. gloo says after half an hour "
    "`Timed out waiting 1800000ms for recv operation to complete` or `for send operation to complete`. "
    "nccl says after 10 minutes `Aborting process on rank N due to timeout`, before torch 2.15 "
    "`Watchdog caught collective operation timeout`. "
    "[Read its dumps](26_when_it_hangs.ipynb#Read-the-dumps), or start it again under `rank-doctor`.",
    ERROR: "The first error that is not an echo counts: an echo says only that another rank has gone or is "
    "late. torchrun's *Root Cause* is the first failure that it observed. "
    "`exitcode: -N` means killed by signal N (`kill -l N` names it); -15 is torchrun stopping the remaining "
    "ranks.",
    WRONG: "[Weights drift apart](#weights-drift-apart) · [Data](#data) · "
    "[Resume, checkpoint](#resume-checkpoint) · [Memory](#memory) · [Slow](#slow)\n\n"
    "Loss, metrics, gradients: [With any number of ranks](#with-any-number-of-ranks) · "
    "[Clipping, accumulation, schedule](#clipping-accumulation-schedule) · "
    "[Tokens, labels, packed sequences](#tokens-labels-packed-sequences) · "
    "[FSDP and low precision](#fsdp-and-low-precision) · [Tensor parallelism](#tensor-parallelism) · "
    "[Pipeline](#pipeline) · [Context parallelism](#context-parallelism) · "
    "[Experts, rollout and trainer](#experts-rollout-and-trainer). "
    "No message? Look in the table of what you switched on last; if it has nothing, in the first one, "
    "then in [Slow or wrong](#slow-or-wrong).\n\n"
    "If all you see is a different loss, under DDP compare a sum of the weights on all ranks. Under FSDP or "
    "TP compare only what should be copies: the parts of DTensors differ by design. If copies differ, "
    "read [Weights drift apart](#weights-drift-apart). A slow job? [Lesson 25](25_see_it.ipynb) helps you "
    "tell whether a rank, the network or the computation is slow.",
}
INTRODUCTION = (
    "[Hangs](#nothing-moves) · [Errors](#an-error-or-an-exit-code) · "
    "[Wrong numbers](#no-error-but-something-is-wrong) · "
    "[GPUs and clusters](#on-gpus-in-containers-on-clusters-with-older-torch)\n\n"
    "Search this page for three or four words from the middle of the message, without numbers, shapes, "
    "paths, addresses or names of operators and parameters: yours differ. The last column names "
    "the case: `python labs/lesson_26/gallery.py CASE` plays it, broken and fixed, on two or four CPU "
    "ranks over gloo; a few cases imitate a library, the kernel or a GPU. "
    "The last part, with nccl's texts, is *from sources*. "
    "Words: [glossary](glossary.md)."
)
ON_GPUS = (
    "Each row has its source. A † marks a text that we have seen, too: on 2026-11-26, on one NVIDIA H200, "
    "with torch 2.11 and nccl 2.28.9 or 2.30.7.\n\n"
    "**Over nccl, mismatched calls often raise no error.** We let two ranks share that GPU "
    "(`NCCL_MULTI_RANK_GPU_ENABLE=1`, from nccl 2.30 on; without it: *Duplicate GPU detected*, below). With "
    "10 and 1,000 elements, or a broadcast here and an all-reduce there, one rank returned and the other "
    "hung. With 1,000,000 and 3,000,000 elements both returned, one with wrong sums. With float32 and "
    "bfloat16 one returned with wrong sums and the other hung, or both hung. "
    "`TORCH_DISTRIBUTED_DEBUG=DETAIL` named both shapes."
)
# What one sees first of a hang, in the order of the tables; a regular expression of ``stands``.
SEEN_FIRST = {
    "In one call": r"^(two|both|all ranks|all members) in",
    "In different calls": r"in the next (step|forward|gather)|of different|another group|thread|call ahead",
    "Some in a call, the others in none": "",
}
# What stands below one of these tables.
AFTER = {
    "Some in a call, the others in none": "If the others have gone on to a later call, "
    "look in [different calls](#in-different-calls), too."
}
# Of wrong numbers: the tables in their order, and the cases of each.
PARTS = {
    "Weights drift apart": "forward_around_ddp forward_under_no_sync two_forwards_two_backwards "
    "two_backwards_of_one_forward unfrozen_later layer_outside_every_unit summand_as_gradient",
    "With any number of ranks": "read_before_wait result_on_one_rank padded_evaluation local_hits "
    "keys_in_another_order few_images_each types_differ success_of_nobody mean_of_means summed_loss",
    "Clipping, accumulation, schedule": "clipped_before_averaged tokens_weigh_differently "
    "schedule_of_the_undivided",
    "Tokens, labels, packed sequences": "no_token_counts mean_of_nothing documents_see_each_other",
    "FSDP and low precision": "optimizer_before_sharding buffer_that_nobody_sends equal_shards_at_random "
    "state_in_bfloat16 sum_in_bfloat16",
    "Tensor parallelism": "all_reduce_in_forward all_reduce_before_one_loss fused_projection",
    "Pipeline": "stages_clip_alone accumulated_pipeline two_messages_to_one_peer",
    "Context parallelism": "labels_after_the_cut tokens_of_the_wrong_group stale_keys",
    "Experts, rollout and trainer": "router_chooses_again experts_not_divided cache_outlives_the_weights",
    "Data": "no_set_epoch epoch_in_workers weighted_draws local_rank_in_sampler stream_on_all_ranks "
    "seed_of_the_sampler mixed_after_the_split one_seed_for_all",
    "Resume, checkpoint": "restart_from_nothing state_of_a_new_optimizer order_drawn_again "
    "one_name_for_all_ranks later_values_saved saved_in_the_handler",
    "Memory": "every_rank_builds_it copies_in_memory outputs_of_all_micro_batches",
    "Slow": "reduces_too_often reduces_between_replicas",
}
COLUMNS = {HANG: "Where the ranks stand", ERROR: "You see", WRONG: "You see"}
TABLES = {HANG: [*SEEN_FIRST], ERROR: [""], WRONG: [*PARTS]}


def link_to(lesson: str) -> str:
    """A link to a lesson, as a file beside the notebooks sees it."""
    for path in NOTEBOOKS.glob(f"{lesson}_*.ipynb"):
        return f"[{lesson}]({path.name})"
    return lesson


def as_code(text: str) -> str:
    """``text`` in a cell of a Markdown table."""
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


def as_cell(text: str) -> str:
    """A message as code; words that have code in them as they are."""
    return text if "`" in text else as_code(text)


def seen_first(stands: str) -> str:
    """Which of the three kinds of a hang it is."""
    return next(kind for kind, pattern in SEEN_FIRST.items() if re.search(pattern, stands))


def part_of(row: dict[str, str]) -> str:
    """The table that a row is in."""
    if row["see"] == HANG:
        return seen_first(row["stands"])
    return next((part for part, names in PARTS.items() if row["name"] in names.split()), "")


def first_sentence(message: str) -> str:
    """What finds a row; the advice that follows in a long message is left out."""
    sentence = re.match(r".{30,}?\.(?= [A-Z]|\\n)", message)
    return sentence[0] if sentence else message


def seen(row: dict[str, str]) -> str:
    """What leads to a row: the text of a message, or words."""
    return row["stands"] if row["see"] == HANG else row["symptom"] or as_code(first_sentence(row["text"]))


def place_in_table(text: str) -> str:
    """Rows are sorted by their letters, code or not."""
    return text.replace("`", "").lower()


def table_of(rows: list[dict[str, str]], see: str) -> list[str]:
    """The lines of one table of cases."""
    lines = [f"| {COLUMNS[see]} | What you did | Why | Fix | Lesson | Provoked here by |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: place_in_table(seen(row))):
        cells = [seen(row), row["did"], row["cause"], row["cure"]]
        cells += [link_to(row["lesson"]), as_code(row["name"])]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def tables_of(rows: list[dict[str, str]]) -> str:
    """The gallery in Markdown, ordered by what is seen; then what was not run here."""
    lines = []
    for see, title in TITLES.items():
        lines += ["", f"## {title}", "", FIRST[see]]
        for part in TABLES[see]:
            of_part = [row for row in rows if row["see"] == see and part_of(row) == part]
            lines += ["", f"### {part}"] if part else []
            lines += ["", *table_of(of_part, see)]
            lines += ["", AFTER[part]] if part in AFTER else []
    lines += ["", "## On GPUs, in containers, on clusters, with older torch", "", ON_GPUS, ""]
    for part, title in SOURCED_PARTS.items():
        lines += [
            f"### {title}",
            "",
            "| You see | Why | Fix | Lesson | From a source |",
            "|---|---|---|---|---|",
        ]
        rows = [failure for failure in SOURCED if failure["part"] == part]
        lines += [*map(sourced_row, sorted(rows, key=lambda row: place_in_table(row["see"]))), ""]
    return "\n".join(lines[1:-1])


def sourced_row(failure: dict[str, str]) -> str:
    text = as_cell(failure["see"]) + " †" * failure.get("seen", False)
    source = f"[{failure['name']}]({failure['url']})"
    cells = [text, failure["why"], failure["cure"], link_to(failure["lesson"]), source]
    return f"| {' | '.join(cells)} |"


def case_named(name: str) -> Case:
    for case in CASES:
        if case.name == name:
            return case
    raise InputError(f"there is no case {name}; there are {', '.join(case.name for case in CASES)}")


def be_one_rank(names: list[str], cured: bool) -> None:
    """Under torchrun: be one rank of one case, without a stage, and let its error come through."""
    if len(names) != 1:
        raise InputError("under torchrun, name one case")
    rank, _, _ = read_environment()
    print(f"rank {rank}: {act(case_named(names[0]), rank, cured)}")


def show(names: list[str], cfg: Config) -> None:
    """What is said in these cases."""
    for row in rows_of([case_named(name) for name in names], cfg):
        print(f"{row['name']}\n  {row['see']}, {row['rank']}: {row['text']}\n  cured: {row['right']}")


def lookup_key(case: Case) -> str:
    """What a reader finds a case by: a hang by where the ranks stand, a wrong number by words."""
    return {HANG: case.stands, ERROR: case.symptom or "its message", WRONG: case.symptom}[case.see]


def page_of(rows: list[dict[str, str]]) -> str:
    """The text of ``notebooks/failures.md``."""
    return f"# Failures by what you see\n\n{INTRODUCTION}\n\n{tables_of(rows)}\n"


def play_all(cfg: Config) -> list[dict[str, str]]:
    """Play all cases, count them, and return their rows."""
    rows = rows_of(CASES, cfg)
    for see, title in TITLES.items():
        print(f"{sum(row['see'] == see for row in rows):3} {title[0].lower()}{title[1:]}")
    print(f"{len(rows):3} failures, each provoked and each cured")
    return rows


def main(cfg: Config, *arguments: str) -> None:
    names = [word for word in arguments if not word.startswith("--")]
    if "RANK" in os.environ:
        be_one_rank(names, "--cured" in arguments)
        return
    nameless = [case.name for case in CASES if not lookup_key(case)]
    if nameless:
        raise CourseError(
            f"nobody finds {', '.join(nameless)}: a hang has `stands`, a wrong number `symptom`"
        )
    if len({case.name for case in CASES}) < len(CASES):
        raise CourseError("two cases have the same name")
    misplaced = {case.name for case in CASES if case.see == WRONG} ^ {*" ".join(PARTS.values()).split()}
    if misplaced:
        raise CourseError(f"PARTS names each wrong number, and nothing else: {', '.join(sorted(misplaced))}")
    if arguments[:1] == ("--write",) and names:
        Path(names[0]).write_text(page_of(play_all(cfg)), encoding="utf-8")
    elif names:
        show(names, cfg)
    else:
        play_all(cfg)


if __name__ == "__main__":
    run(main, Config(), *sys.argv[1:])
