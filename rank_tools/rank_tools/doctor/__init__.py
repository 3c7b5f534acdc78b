"""The doctor of lesson 26: which rank is missing in which call, when nothing moves.

The folder needs Python alone and can be copied as it is: ``rank-doctor -- torchrun ...`` or
``python -m rank_tools.doctor -- torchrun ...`` here, ``python -m doctor -- torchrun ...`` beside a copy.

``inside`` is the only part that runs in the job's processes. ``job`` starts and ends the job and asks what
its processes do, ``outside`` looks at processes from outside, ``ranks`` makes ranks of what they say,
``calls`` compares the calls that they have made, ``verdict`` finds the words.
"""
