"""Tools of the course Rank by Rank: ``checklist``, ``doctor`` and ``planner``, each a command of its own."""
