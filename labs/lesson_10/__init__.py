"""Instruments of lesson 10: the diffs that build its script, and synchronized batch norm for the CPU."""
