"""Instruments of lesson 18: a sharded optimizer that can be used in place of torch's."""
