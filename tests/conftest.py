"""The switch that runs as programs what tests evaluate; see tests/programs."""


def pytest_addoption(parser):
    parser.addoption(
        "--programs", action="store_true", help="run every graph that is evaluated as programs too, and compare bits"
    )


def pytest_configure(config):
    if config.getoption("--programs"):
        from programs.plugin import Programs

        config.programs = Programs()
        config.programs.start()
        config.pluginmanager.register(config.programs, "programs")


def pytest_unconfigure(config):
    if hasattr(config, "programs"):
        config.programs.stop()
