"""Planted faults of lesson 11; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

SAVING = "11_saving"

FAULTS: list[Fault] = [
    Fault(
        "11_bad_files",
        'zipped = file.read(2) in (b"PK", b"")',
        'zipped = file.read(2) == b"PK"',
        "empty.pt: expected one line with 'damaged or cut short (0 bytes)'",
        ranks=0,
    ),
    Fault(
        "11_kill",
        'temporary = path.with_name(f"{path.name}.tmp")',
        "temporary = path",
        "the atomic save must leave no torn file",
        ranks=0,
    ),
    # The lab that kills the script sees each file: one that is not watched is noticed.
    Fault(
        "11_kill",
        "io.open = self.watched_open(io.open)",
        "pass",
        "came about unseen",
        run="11_kill_train",
        ranks=0,
    ),
    Fault(
        "11_kill_train",
        "resumed = launch(folder, cfg, case.ranks_then)",
        'resumed = launch(folder.with_name("elsewhere"), cfg, case.ranks_then)',
        "rename step_00000005: is left:",
        ranks=0,
    ),
    # What the script itself must not do. A checkpoint that is half removed must not look complete.
    Fault(
        "10_train",
        'shutil.rmtree(old.rename(old.with_suffix(".part")))  # half removed, it is not complete',
        "shutil.rmtree(old)",
        "looks complete and is not",
        run="11_kill_train",
        ranks=0,
    ),
    Fault(
        "10_train",
        '        sync_to_disk(part / "run.json")\n',
        "",
        "run.json is renamed before it is flushed",
        run="11_kill_train",
        ranks=0,
    ),
    # Old ones go before the new one is there.
    Fault(
        "10_train",
        "        self.finish()\n        trainer.share_buffers()",
        """        self.finish()
        if self.ranks.rank == 0:
            for old in complete_in(self.folder)[self.options.keep - 1 :]:
                shutil.rmtree(old)
        trainer.share_buffers()""",
        "the newest checkpoint is",
        run="11_kill_train",
        ranks=0,
    ),
    Fault(
        "11_other_size",
        'if path.suffix != ".part"]',
        "if path.is_dir()]",
        "global metadata read failed",
        before=("11_shards",),
    ),
    Fault(
        "11_rank0",
        "    read(model, path, device)\n    dist.barrier()",
        "    if dist.get_rank() == 0:\n        read(model, path, device)\n    dist.barrier()",
        "rank 1 has loaded other parameters than it trained",
    ),
    Fault(
        "11_resume",
        'it.scheduler.load_state_dict(saved["scheduler"])',
        "it.scheduler.step()",
        "nothing forgotten: other losses at steps",
    ),
    Fault(
        "11_saving",
        '        one.checkpoints.finish()\n    expect("when',
        '    expect("when',
        "when it is written: ['step_00000002.part'], expected",
    ),
    Fault(
        "10_train",
        'super().__init__(final.with_suffix(".part"))',
        "super().__init__(final)",
        "while it is written: ['step_00000002'], expected ['step_00000002.part']",
        run=SAVING,
    ),
    Fault(
        "10_train",
        "                self.succeeded = False\n",
        "                pass\n",
        "saved on a full disk: True",
        run=SAVING,
    ),
    Fault(
        "10_train",
        'shutil.rmtree(old.rename(old.with_suffix(".part")))',
        "print(old.name)",
        "the newest two: ['step_00000002', 'step_00000004', 'step_00000005'], expected",
        run=SAVING,
    ),
    Fault(
        "10_train",
        "        trainer.step = step\n",
        "",
        "step 3 after a restart",
        run=SAVING,
    ),
    Fault(
        "11_shards",
        'torch.save(whole, folder / "plain.pt")',
        'torch.save({n: t.double() for n, t in whole.items()}, folder / "plain.pt")',
        "bytes were written for",
    ),
    # A save that training waits for.
    Fault(
        "11_shards",
        "future = dcp.async_save(state, storage_writer=writer, async_stager=stager, process_group=own_group)",
        "future = dcp.save(state, storage_writer=writer, process_group=own_group)",
        "nobody has opened the gate",
    ),
    Fault(
        "11_too_early",
        "path.unlink(missing_ok=True)",
        "pass",
        "no file: loads, and notices nothing, expected",
    ),
]
