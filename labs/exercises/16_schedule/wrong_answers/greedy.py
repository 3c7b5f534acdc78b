# rejected: 3 ranks, 6 micro-batches: a step takes 21, allowed is 20
"""Plays the whole pipeline, unit by unit: a rank does I if it can, else F if there is room, else W."""


def schedule(rank, ranks, micro_batches):
    plan = [[] for _ in range(ranks)]
    ends = {}
    pending = [[] for _ in range(ranks)]
    forwarded = [0] * ranks
    sent_back = [0] * ranks
    let_go = [0] * ranks
    now = 0
    while min(let_go) < micro_batches:
        for r in range(ranks):
            number = sent_back[r]
            gradient = ("F", r, number) if r == ranks - 1 else ("I", r + 1, number)
            input_is_there = r == 0 or ends.get(("F", r - 1, forwarded[r]), now + 1) <= now
            if number < forwarded[r] and ends.get(gradient, now + 1) <= now:
                plan[r].append(("I", number))
                ends["I", r, number] = now + 1
                pending[r].append(number)
                sent_back[r] += 1
            elif forwarded[r] < micro_batches and forwarded[r] - let_go[r] < ranks and input_is_there:
                plan[r].append(("F", forwarded[r]))
                ends["F", r, forwarded[r]] = now + 1
                forwarded[r] += 1
            elif pending[r]:
                plan[r].append(("W", pending[r].pop(0)))
                let_go[r] += 1
        now += 1
    return plan[rank]
