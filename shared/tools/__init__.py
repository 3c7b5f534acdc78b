"""Tools of those who write the course: sync, refresh, run, compare, bench. Readers need none of them."""
