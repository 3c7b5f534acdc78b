"""The gallery of lesson 26: failures, each provoked and cured, and the stage on which ranks play them."""
