"""The checklist of lesson 10: what a training script lacks on several ranks.

The script is read, never run or imported. The folder needs Python alone and can be copied as it is:
``python -m shared.checklist SCRIPT`` here, ``python -m checklist SCRIPT`` beside a copy.

``script`` reads a file, ``ranks`` and ``torch_calls`` know what it does, ``rules_*`` ask the questions.
"""
