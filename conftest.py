"""Loads the plugin for `tests` and `notebooks` alike."""

pytest_plugins = ["tests.nbmake_plugin"]
