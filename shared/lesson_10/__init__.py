"""Instruments of lesson 10: synchronized batch norm for the CPU."""
