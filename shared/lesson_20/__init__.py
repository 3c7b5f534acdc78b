"""Instruments of lesson 20: floating-point operations, counted."""
