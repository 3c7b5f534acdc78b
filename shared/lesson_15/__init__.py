"""Instruments of lesson 15: two devices of one process, real or simulated."""
