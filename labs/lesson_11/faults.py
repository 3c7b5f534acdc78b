"""Planted faults of lesson 11."""

from tests.planted import Fault, group_of

SAVING = "11_saving"

FAULTS: list[Fault] = [
    Fault(
        lab="11_bad_files",
        old="                train(path, cfg, load_checkpoint)\n",
        new="                train(path, cfg, carelessly)\n",
        told="truncated.pt: expected one line with 'damaged or cut short'",
        ranks=0,
    ),
    # A disk that does not answer is taken for damage.
    Fault(
        lab="11_bad_files",
        old='path.symlink_to("/proc/self/mem")',
        new='path.write_bytes(b"PK")',
        told="unread.pt was not read, and yet judged: ",
        ranks=0,
    ),
    Fault(
        lab="11_fsdp",
        old='dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)',
        new='dcp.load({"model": weights}, checkpoint_id=folder)',
        told="Tensor-likes are not close!",
        arguments=("step_3",),
        before=("11_fsdp", "step_3"),
    ),
    Fault(
        lab="11_kill",
        old='temporary = path.with_name(f"{path.name}.tmp")',
        new="temporary = path",
        told="the atomic save must leave no torn file",
        ranks=0,
    ),
    # The lab that kills the script sees each file: one that is not watched is noticed.
    Fault(
        lab="11_kill_train",
        old="resumed = launch(lab_10_train, options, folder, case.ranks_then)",
        new='resumed = launch(lab_10_train, options, folder.with_name("elsewhere"), case.ranks_then)',
        told=", time 1, rank 0 of 1: ",  # whichever kill is looked at first
        ranks=0,
    ),
    *group_of(
        # It gets its name at the next save only.
        Fault(
            lab="11_checkpointing",
            old="        self.path.rename(self.final)\n",
            new="""        for late in self.final.parent.glob("late_*"):
            late.rename(late.with_name(late.name.removeprefix("late_")))
        self.path.rename(self.path.with_name(f"late_{self.final.name}"))
        return
""",
            told="the unbroken run: [0], ['step_00000005', 'step_00000010']",
        ),
        # A checkpoint that is half removed must not look complete.
        Fault(
            lab="11_checkpointing",
            old='remove(path.rename(path.with_suffix(".part")))  # half removed, it is not complete',
            new="remove(path)",
            told="looks complete and is not",
        ),
        Fault(
            lab="11_checkpointing",
            old='        sync_to_disk(self.path / "run.json")\n',
            new="",
            told="run.json is renamed before it is flushed",
        ),
        # Old ones go before the new one is there.
        Fault(
            lab="11_checkpointing",
            old="        state = self.state()\n        if self.is_first:\n",
            new="""        if dist.get_rank() == 0:
            for old in complete_in(self.folder)[self.keep - 1 :]:
                shutil.rmtree(old)
        state = self.state()
        if self.is_first:
""",
            told="the newest checkpoint is",
        ),
        run="11_kill_train",
        ranks=0,
    ),
    Fault(
        lab="11_other_size",
        old='if path.suffix != ".part"]',
        new="if path.is_dir()]",
        told="global metadata read failed",
        before=("11_shards",),
    ),
    Fault(
        lab="11_rank0",
        old="    read(model, path, device)\n    dist.barrier()",
        new="    if dist.get_rank() == 0:\n        read(model, path, device)\n    dist.barrier()",
        told="rank 1 has loaded other parameters than it trained",
    ),
    Fault(
        lab="11_resume",
        old='it.scheduler.load_state_dict(saved["scheduler"])',
        new="it.scheduler.step()",
        told="nothing forgotten: other losses at steps",
    ),
    Fault(
        lab="11_checkpointing",
        old='super().__init__(final.with_suffix(".part"))',
        new="super().__init__(final)",
        told="while it is written: ['step_00000002'], expected ['step_00000002.part']",
        run=SAVING,
    ),
    Fault(
        lab="11_checkpointing",
        old="                self.failure = last_line(error)\n",
        new="",
        told="saved on a full disk: True",
        run=SAVING,
    ),
    Fault(
        lab="11_checkpointing",
        old="        self.step = int(checkpoint.name[5:])\n",
        new="",
        told="step 3 after a restart",
        run=SAVING,
    ),
    Fault(
        lab="11_shards",
        old='torch.save(whole, folder / "plain.pt")',
        new='torch.save({n: t.double() for n, t in whole.items()}, folder / "plain.pt")',
        told="bytes were written for",
    ),
    # A save that training waits for.
    Fault(
        lab="11_shards",
        old="dcp.async_save(state, storage_writer=writer, async_stager=stager, process_group=own_group)",
        new="dcp.save(state, storage_writer=writer, process_group=own_group)",
        told="nobody has opened the gate",
    ),
    Fault(
        lab="11_too_early",
        old="path.unlink(missing_ok=True)",
        new="pass",
        told="no file: loads, and notices nothing, expected",
    ),
]
