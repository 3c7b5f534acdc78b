"""Planted faults of lesson 01; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("01_who", 'return len(before) + me["LOCAL_RANK"]', "return len(before)", "counting does not give"),
    Fault(
        "01_who",
        "return {name: int(os.environ[name]) for name in NUMBERS}",
        "return {name: int(os.environ[name]) * (name != 'LOCAL_RANK') for name in NUMBERS}",
        "not true: local ranks count from 0; the rank is what counting gives",
        "01_reports",
    ),
    Fault("01_reports", '"rank": me["RANK"]', '"rank": me["LOCAL_RANK"] + 1', "not true: ranks count from 0"),
    Fault(
        "01_launchers",
        '"LOCAL_RANK": index,',
        '"LOCAL_RANK": 0,',
        "counting does not give rank 1",
        ranks=0,
        launch="python",
        arguments=("2",),
    ),
    Fault(
        "01_launchers",
        "sys.exit(FAILED)",
        "sys.exit(FAILED + 1)",
        "mp.spawn tells of process 1",
        ranks=0,
        arguments=("2",),
    ),
    Fault(
        "01_launchers",
        "processes.append(process)",
        "processes = [process]",
        "the ranks of Process left with exit codes [3]",
        ranks=0,
        arguments=("2",),
    ),
    Fault("01_options", '"--max-restarts":', '"--max-restart":', "has no option --max-restart any", ranks=0),
]
