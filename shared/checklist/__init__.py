"""``rank-check``: what a training script lacks on several ranks. The script is read, never run.

The folder needs Python alone and can be copied as it is: ``rank-check train.py`` or
``python -m shared.checklist train.py`` here, ``python -m checklist train.py`` beside a copy.

``sources`` reads files and their imports; ``machine`` goes through them as Python would, with the values of
``values`` and the conditions of ``conditions``; ``library`` and ``objects`` know what torch does there; the
events that they see are what the rules of ``rules_*`` ask about.
"""
