"""Instruments of lesson 09: where communication overlaps, and how long a step takes by each of its DDPs."""
