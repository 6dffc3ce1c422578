"""The switch that writes the pinned messages anew."""


def pytest_addoption(parser):
    parser.addoption("--update-messages", action="store_true", help="write the messages of refused programs anew")
