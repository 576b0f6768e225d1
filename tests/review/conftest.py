import shutil

import pytest

from tests.review import made


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    return made.save(tmp_path_factory.mktemp("saved") / "run")


@pytest.fixture
def run(saved, tmp_path):
    """A run of 60 examples of four classes, whose six wrong labels are the suspects."""
    return shutil.copytree(saved, tmp_path / "run")


@pytest.fixture
def app(run):
    found = made.App(run)
    yield found
    found.close()


@pytest.fixture(scope="session")
def looked_at(saved, tmp_path_factory):
    """An app that nothing is decided in, for all tests that only look."""
    found = made.App(shutil.copytree(saved, tmp_path_factory.mktemp("looked") / "run"))
    yield found
    found.close()
