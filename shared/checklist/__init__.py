"""The checklist of lesson 10: what a training script lacks on several ranks.

The script is read, never run or imported. The folder needs Python alone and can be copied as it is:
``rank-check SCRIPT`` or ``python -m shared.checklist SCRIPT`` here, ``python -m checklist SCRIPT`` beside a
copy.

``files`` follows the imports of a script, ``script`` knows what its names stand for, ``ranks`` and
``torch_calls`` know what it does, ``rules_*`` ask the questions.
"""
