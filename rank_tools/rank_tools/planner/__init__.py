"""The planner of lesson 28: what a training run needs on many GPUs, worked out before it is started.

The folder needs Python alone and can be copied as it is: ``rank-plan --model 405b --gpus 16384`` or
``python -m rank_tools.planner ...`` here, ``python -m planner ...`` beside a copy.

``transformer`` counts parameters, ``flops`` operations, ``memory`` bytes that a rank holds, ``traffic``
calls and bytes that it sends, ``ops`` the seconds of a block, ``pipeline`` the bubble, ``step`` the seconds
of a step, ``failures`` what is lost by them. ``search`` tries layouts and says why one fails. ``published``
holds all of it against what others have measured.
"""

# ruff: noqa: F401

from .errors import PlanError
from .failures import best_interval, goodput, mean_time_between
from .flops import CAUSAL, FULL, PARAMETERS_ONLY, per_token, utilization
from .hardware import GPUS, Gpu, Network, fsdp_hides_from, gpu_named
from .layout import Layout
from .memory import Memory, memory_of
from .pipeline import bubble
from .search import Plan, Rejected, Training, judge, nearest_batch, propose
from .stack import STACKS, Stack, stack_named
from .step import StepTime, step_time
from .traffic import traffic_of
from .transformer import MODELS, Model, model_in, model_named
