"""The rules of a lesson. Each is a function that returns the problems it finds, as sentences."""
