"""Harness of lesson 27: machines on this machine, a Slurm of its own, and what is tried on them."""
