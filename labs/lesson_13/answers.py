"""Answers to exercise 13."""

from tests.planted import Right, Wrong

LOAD = """
if path.exists():
    saved = load_checkpoint(path, group.device)
    run.model.load_state_dict(saved["model"])
    run.optimizer.load_state_dict(saved["optimizer"])
    done = saved["step"]
"""

ANSWERS = [
    Wrong(
        what="All ranks save.",
        old="0 and group.rank == 0",
        new="0",
        told="saves, too; several ranks would write the same file",
    ),
    Wrong(
        what="Saves after each step, by the module's name.",
        old=("load_checkpoint(", "step % interval == 0 and group", "save_atomically("),
        new=("checkpoint.load_checkpoint(", "group", "checkpoint.save_atomically("),
        told="5 lost + 120 saves x 2 = 365 is over the budget of 190",
        below="from shared.training import checkpoint",
    ),
    Wrong(
        what="Loads also when nothing has been saved yet.",
        old="if path.exists():",
        new="if True:",
        told="there is no such checkpoint",
    ),
    Wrong(
        what="Writes to the only good snapshot.",
        old="save_atomically({",
        new='torch.save({"format": FORMAT, "version": VERSION, ',
        told="torch.save by itself leaves half a file if a kill comes while it writes",
        below="""
        import torch
        from shared.training.checkpoint import FORMAT, VERSION
        """,
    ),
    Wrong(
        what="The formula without its 2.",
        old="2 * save_cost",
        new="save_cost",
        told="50 is no good interval",
    ),
    Wrong(
        what="Restores the model alone.",
        old='run.optimizer.load_state_dict(saved["optimizer"])',
        new="",
        told="but not the momentum after step",
    ),
    Wrong(
        what="Rank 0 alone restores.",
        old="path.exists",
        new="group.rank == 0 and path.exists",
        told="the ranks do different steps at the same time",
    ),
    Wrong(
        what="Asks torchrun whether it is a restart, which a new job does not count.",
        old="path.exists()",
        new='int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0',
        told="starts at step 1 again",
        below="import os",
    ),
    Wrong(
        what="Does the saved step once more.",
        old="done + 1",
        new="max(done, 1)",
        told="but gets those after step",
    ),
    Wrong(
        what="Saves the number of the next step, and resumes after it.",
        old=": step, **",
        new=": step + 1, **",
        told="step 32 wants the weights after step 31, but gets those after step 30",
    ),
    Wrong(
        what="Saves each 10 steps, whatever the interval.",
        old="step % interval == 0",
        new="step % 10 == 0",
        told="with an interval of 7 steps train saves 12 times in 120 steps, not 17 times",
    ),
    Wrong(
        what="Saves every 7 steps, whatever the interval.",
        old="step % interval == 0",
        new="step % 7 == 0",
        told="with an interval of 40 steps train saves 17 times in 120 steps, not 3 times",
    ),
    Wrong(
        what="Saves just before the kills of this check.",
        old="step % interval == 0",
        new="step in (35, 50, 65, 89, 118)",
        told="with an interval of 7 steps train saves 5 times in 120 steps, not 17 times",
    ),
    Wrong(
        what="Keeps a second copy now and then, made by shutil.",
        old="run.do(step)",
        new="""
        run.do(step)
        if step % 10 == 5 and path.exists() and group.rank == 0:
            shutil.copy(path, path.with_suffix(".spare"))
        """,
        told="something was written without save_atomically",
        below="import shutil",
    ),
    Right(
        what="Rank 0 reads the file, and hands what is in it to the others.",
        old=LOAD,
        new="""
        box = [load_checkpoint(path, group.device) if group.rank == 0 and path.exists() else None]
        dist.broadcast_object_list(box)
        if box[0]:
            run.model.load_state_dict(box[0]["model"])
            run.optimizer.load_state_dict(box[0]["optimizer"])
            done = box[0]["step"]
        """,
        below="import torch.distributed as dist",
    ),
]
