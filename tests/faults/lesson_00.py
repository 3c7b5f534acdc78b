"""Planted faults of lesson 00; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("00_machine", '"torchrun") is not', '"torchrun-of-old") is not', "not fit yet", ranks=0),
    Fault(
        "00_hello",
        "items[rank::world_size]",
        "items.chunk(world_size)[0]",
        "the sum over all ranks is",
    ),
    Fault("00_hello", "dist.all_reduce(total)", "dist.broadcast(total, src=0)", "the sum over all ranks is"),
    Fault(
        "00_hello", "items[rank::world_size]", "items[rank::2]", "from what one process finds", "00_digits", 3
    ),
    Fault(
        "00_digits",
        "dist.all_reduce(together)",
        "dist.broadcast(together, src=0)",
        "from what one process finds",
    ),
    Fault("00_echo", "world_size() // 2:", "world_size():", "no rank failed before it"),
    Fault("00_echo", "world_size() // 2:", "world_size():", "no rank failed before it", "00_fails"),
    Fault(  # no rank ends before the others have heard that it left: else torchrun might end them first
        "00_fails",
        "    run(main)",
        "    import atexit, time\n"
        "    import torch.distributed as dist\n"
        "    atexit.register(time.sleep, 3)\n"
        "    atexit.register(dist.destroy_process_group)\n"
        "    main()",
        "by peer",  # "Connection closed" or "Connection reset"
        launch="torchrun",
    ),
]
