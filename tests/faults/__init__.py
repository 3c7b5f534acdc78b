"""Planted faults, one file for each lesson. Their form: ``tests/planted.py``."""
