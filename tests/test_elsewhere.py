"""Lessons show what is committed on processors with older vector instructions, too.

Other instructions add up a float32 sum in another order, and training makes much of little. torch, oneDNN and
MKL can be told to leave out what this processor has; the variables are read when torch is imported.
"""

import pytest

from tests.helpers import LESSON_PATHS, ROOT, python
from tests.kernels import run_nbmake

pytestmark = pytest.mark.slow

PROCESSORS = {
    "default": {  # what each x86-64 processor has; MKL's own choice for those of other makers
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
LESSONS = ("06", "10", "14")  # they train in float32 and show what comes of it
SAY_WHICH = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"


@pytest.mark.parametrize("name", PROCESSORS)
def test_lessons_that_train_show_the_same(name: str, monkeypatch: pytest.MonkeyPatch):
    for variable, value in PROCESSORS[name].items():
        monkeypatch.setenv(variable, value)
    used = python("-c", SAY_WHICH).stdout.strip()
    if used != name:
        pytest.skip(f"not run here: torch uses {used} on this processor, not {name}")
    paths = [str(path) for path in LESSON_PATHS if path.name[:2] in LESSONS]
    done = run_nbmake(ROOT, *paths)
    assert done.returncode == 0, done.stdout
