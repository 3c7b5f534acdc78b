"""Planted faults of lesson 25."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    Fault(
        lab="25_profile",
        old="active=steps,",
        new="active=steps - 1,",
        told="steps in the trace, of 3",
        run="25_slow",
    ),
    Fault(
        lab="25_slow",
        old='and window["ts"] <= event["ts"] < end',
        new='and event["ts"] < end',
        told="numbers, the model has",
    ),
    *group_of(
        Fault(
            lab="25_reader",
            old="compute = without(merged(trace.spans(COMPUTE)), evaluation)",
            new="compute = merged(trace.spans(COMPUTE))",
            told="a step of a CPU",
        ),
        Fault(
            lab="25_reader",
            old="        data = without(data, compute)\n",
            new="        pass\n",
            told="a step of a GPU",
        ),
        Fault(
            lab="25_reader",
            old=".append(events[first].end - event.end)",
            new=".append(events[first].start - event.start)",
            told="shifts of the clocks",
        ),
        Fault(
            lab="25_reader",
            old="last = max(entered, key=entered.__getitem__)",
            new="last = min(entered, key=entered.__getitem__)",
            told="who comes last",
        ),
        Fault(
            lab="25_reader",
            old="entered = min(max(last - shifts[rank], event.start), event.end)",
            new="entered = event.start",
            told="waiting: [0.0, 0.0, 0.0], known is [80, 0, 75]",
        ),
        Fault(
            lab="25_reader",
            old='group = details.get("Process Group Name", ONLY)',
            new="group = ONLY",
            told="the trace does not say to which of 2 groups it belongs",
        ),
        Fault(
            lab="25_reader",
            old="together = any(op in flat for op in END_TOGETHER)",
            new="together = True",
            told="clocks with a broadcast",
        ),
        Fault(lab="25_diagnose", old="MOST = 2 / 3", new="MOST = 1", told="more compute on ranks (1,) of 2"),
        Fault(
            lab="25_diagnose",
            old="for part in (*OWN, TRANSFER):",
            new="for part in OWN:",
            told="more transfer on all ranks",
        ),
        run="25_known",
        ranks=0,
    ),
    Fault(
        lab="25_slow",
        old="            training.be_late(part, group.rank == late(step))\n",
        new="            pass\n",
        told="data on ranks (1,): the tree says",
    ),
    Fault(
        lab="25_slow",
        old="bucket_cap_mb=cfg.bucket_mb",
        new="bucket_cap_mb=25",
        told="hands over its buckets after backward",
    ),
    Fault(
        lab="25_flops",
        old="matrices = [model.head.weight]",
        new="matrices = [model.head.weight, model.tokens.weight]",
        told="forward: 2 N D + 4 L H Q T D: torch counts",
        ranks=0,
    ),
]
