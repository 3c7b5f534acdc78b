"""Answers to the exercises, one file for each. Their form: ``tests/planted.py``."""
