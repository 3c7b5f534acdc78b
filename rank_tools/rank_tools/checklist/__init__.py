"""``rank-check``: a linter for training scripts that run on several ranks.

    python -m rank_tools.checklist train.py

``source`` reads files, ``program`` says what calls what in one of them, ``rules`` has the rules, ``report``
prints what they find. It runs nothing, and imports the standard library alone: copy the folder if you like.
"""
