"""Answers to exercise 28; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Divides each layer among all GPUs.",
        "TP 64 leaves the node of 8 GPUs",
        plan="return 64, Layout(tp=64)",
    ),
    wrong(
        "Takes as many GPUs as the budget pays for.",
        "GPUs come in nodes of 8",
        plan="""
        gpus = int(dollars / (days * 24 * training.dollars)) | 1
        return gpus, Layout(dp=gpus, zero=3)
        """,
    ),
    wrong(
        "Takes what needs the least memory within the limits.",
        "it fits, but a plan for",
        plan="""
        plans, _ = propose(replace(training, gpus=most_gpus))
        fits = [one for one in plans if one.days <= days and one.dollars <= dollars]
        return most_gpus, min(fits, key=lambda one: one.memory.total).layout
        """,
    ),
    wrong(
        "Takes data parallelism for everything.",
        "a rank needs",
        plan="return 128, Layout(dp=128, zero=1)",
    ),
    wrong(
        "Returns the layout alone.",
        "expected a number of GPUs and a Layout",
        plan="return propose(training)[0][0].layout",
    ),
    wrong(
        "Takes the slowest plan that is in time: memory and days fit, dollars do not.",
        "it costs",
        plan="""
        plans, _ = propose(replace(training, gpus=most_gpus))
        in_time = [one for one in plans if one.days <= days]
        return most_gpus, max(in_time, key=lambda one: one.dollars).layout
        """,
    ),
    wrong(
        "Takes what is cheapest, however long it takes.",
        "days on 8 GPUs, allowed are",
        plan="""
        plans, _ = propose(training)
        return 8, min(plans, key=lambda one: one.dollars).layout
        """,
    ),
    right(
        "A search of its own, with judge alone.",
        plan="""
        best: Plan | None = None
        number = 0
        for gpus in (2**power for power in range(3, 12) if 2**power <= most_gpus):
            for layout in layouts(gpus):
                found = judge(replace(training, gpus=gpus), layout)
                if not isinstance(found, Plan) or found.days > days or found.dollars > dollars:
                    continue
                if best is None or found.dollars < best.dollars:
                    best, number = found, gpus
        assert best is not None
        return number, best.layout
        """,
        below="""
        import itertools

        from shared.planner import Plan, judge


        def layouts(gpus: int) -> list[Layout]:
            found = []
            sizes = (1, 2, 4, 8)
            cuts = itertools.product(sizes, sizes, (*sizes, 16), sizes, sizes[:3], (1, 3), ("none", "full"))
            for tp, cp, pp, chunks, micro_batch, zero, recompute in cuts:
                if gpus % (tp * cp * pp) or (chunks > 1 and pp == 1):
                    continue
                schedule = "interleaved" if chunks > 1 else "1F1B"
                layout = Layout(tp=tp, cp=cp, pp=pp, dp=gpus // (tp * cp * pp), zero=zero, chunks=chunks,
                                schedule=schedule, micro_batch=micro_batch, recompute=recompute,
                                sequence_parallel=tp > 1, context="gather")
                found.append(layout)
            return found
        """,
    ),
    right(
        "From the most GPUs down, and it stops when it becomes too slow.",
        plan="""
        found = []
        gpus = most_gpus
        while gpus >= 8:
            plans, _ = propose(replace(training, gpus=gpus))
            in_time = [one for one in plans if one.days <= days]
            if plans and not in_time:
                break
            found += [(one.dollars, gpus, one.layout) for one in in_time]
            gpus //= 2
        found.sort(key=lambda one: one[0])
        return found[0][1], found[0][2]
        """,
    ),
]
