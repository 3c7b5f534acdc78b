"""The tests of the course."""
