"""Harness of lesson 02: processes that fail to meet, and how they meet after all."""
