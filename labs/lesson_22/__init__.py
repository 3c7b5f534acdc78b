"""Instruments of lesson 22: what a row of its table is made of, and what it holds in memory."""
