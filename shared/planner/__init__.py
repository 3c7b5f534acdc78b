"""The planner of lesson 28: what a training run needs on thousands of GPUs, worked out before it is started.

The folder needs Python alone and can be copied as it is: ``rank-plan --model 405b --gpus 16384`` or
``python -m shared.planner ...`` here, ``python -m planner ...`` beside a copy.

``models`` counts parameters, ``flops`` operations, ``memory`` bytes that a rank holds, ``traffic`` calls and
bytes that it sends, ``pipeline`` the bubble, ``step`` the seconds of a step, ``failures`` what is lost by
them. ``search`` tries layouts and says why one fails.
"""

from .errors import PlanError
from .failures import best_interval, goodput, mean_time_between
from .flops import CAUSAL, FULL, PARAMETERS_ONLY, per_token, utilization
from .hardware import GPUS, Gpu, Network
from .layout import Layout
from .memory import Memory, memory_of
from .models import MODELS, Model, model_named
from .pipeline import bubble
from .search import Plan, Rejected, Training, judge, propose
from .step import StepTime, step_time
from .traffic import traffic_of

__all__ = [
    "CAUSAL",
    "FULL",
    "GPUS",
    "MODELS",
    "PARAMETERS_ONLY",
    "Gpu",
    "Layout",
    "Memory",
    "Model",
    "Network",
    "Plan",
    "PlanError",
    "Rejected",
    "StepTime",
    "Training",
    "best_interval",
    "bubble",
    "goodput",
    "judge",
    "mean_time_between",
    "memory_of",
    "model_named",
    "per_token",
    "propose",
    "step_time",
    "traffic_of",
    "utilization",
]
