"""Answers to exercise 13; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

LOAD = """
if path.exists():
    saved = load_checkpoint(path, group.device)
    run.model.load_state_dict(saved["model"])
    run.optimizer.load_state_dict(saved["optimizer"])
    done = saved["step"]
"""

ANSWERS = [
    wrong(
        "All ranks save.",
        "saves, too",
        ("0 and group.rank == 0", "0"),
    ),
    wrong(
        "Saves after each step, by the module's name.",
        "5 lost + 120 saves x 2 = 365 is over the budget of 190",
        ("load_checkpoint(", "checkpoint.load_checkpoint("),
        ("step % interval == 0 and group", "group"),
        ("save_atomically(", "checkpoint.save_atomically("),
        below="from shared.training import checkpoint",
    ),
    wrong(
        "Loads also when nothing has been saved yet.",
        "there is no such checkpoint",
        ("if path.exists():", "if True:"),
    ),
    wrong(
        "Writes to the only good snapshot.",
        "torch.save by itself leaves half a file if a kill comes while it writes",
        ("save_atomically({", 'torch.save({"format": FORMAT, "version": VERSION, '),
        below="""
        import torch
        from shared.training.checkpoint import FORMAT, VERSION
        """,
    ),
    wrong(
        "The right interval for one of the runs, by heart.",
        "12 is no good interval",
        ("round(math.sqrt(2 * save_cost * steps / kills))", "12"),
    ),
    wrong(
        "The formula without its 2.",
        "50 is no good interval",
        ("2 * save_cost", "save_cost"),
    ),
    wrong(
        "Restores the model alone.",
        "but not the momentum after step",
        ('run.optimizer.load_state_dict(saved["optimizer"])', ""),
    ),
    wrong(
        "Saves each second step in short runs.",
        "is over the budget of 190",
        ("round(math", "2 if steps < 1000 else round(math"),
    ),
    wrong(
        "Rank 0 alone restores.",
        "the ranks do different steps at the same time",
        ("path.exists", "group.rank == 0 and path.exists"),
    ),
    wrong(
        "Asks torchrun whether it is a restart, which a new job does not count.",
        "starts at step 1 again",
        ("path.exists()", 'int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0'),
        below="import os",
    ),
    wrong(
        "Does the saved step once more.",
        "but gets those after step",
        ("done + 1", "max(done, 1)"),
    ),
    wrong(
        "Saves the number of the next step, and goes on after it.",
        "step 32 wants the weights after step 31, but gets those after step 30",
        (": step, **", ": step + 1, **"),
    ),
    wrong(
        "Keeps a second copy now and then, made by shutil.",
        "something was written without save_atomically",
        (
            "run.do(step)",
            """
            run.do(step)
            if step % 10 == 5 and path.exists() and group.rank == 0:
                shutil.copy(path, path.with_suffix(".spare"))
            """,
        ),
        below="import shutil",
    ),
    right(
        "Rank 0 reads the file, and hands what is in it to the others.",
        (
            LOAD,
            """
            box = [load_checkpoint(path, group.device) if group.rank == 0 and path.exists() else None]
            dist.broadcast_object_list(box)
            if box[0]:
                run.model.load_state_dict(box[0]["model"])
                run.optimizer.load_state_dict(box[0]["optimizer"])
                done = box[0]["step"]
            """,
        ),
        below="import torch.distributed as dist",
    ),
    right(
        "Saves the step to begin with, and calls save_atomically by its module.",
        (LOAD, LOAD.replace('done = saved["step"]', 'done = saved["first"] - 1')),
        (
            'save_atomically({"step": step, **state}',
            'checkpoint.save_atomically({"first": step + 1, **state}',
        ),
        below="from shared.training import checkpoint",
    ),
    right(
        "Counts the steps since the last save, and does not save the end, which nobody needs.",
        (LOAD, LOAD + "since_save = 0"),
        (
            "if step % interval == 0 and group.rank == 0:",
            """
            since_save += 1
            if since_save < interval or step == run.steps:
                continue
            since_save = 0
            if group.rank == 0:
            """,
        ),
    ),
]
