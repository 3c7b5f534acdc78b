"""Loads the plugins for `tests` and `notebooks` alike."""

pytest_plugins = ["tests.nbmake_plugin", "tests.tmpdir_plugin", "tests.order_plugin"]
