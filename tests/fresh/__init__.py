"""The README's commands on machines that have nothing; run by hand before a release."""
