"""Tests in the rooms of lessons are for those who write lessons."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("author")
