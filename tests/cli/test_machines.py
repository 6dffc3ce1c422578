"""`meshwright machines`."""

import pytest

from meshwright.machine import from_json, load, loads, presets


def test_the_list_names_every_machine(run):
    result = run("machines")
    assert result.exit_code == 0
    for name in presets():
        assert name in result.stdout


@pytest.mark.parametrize("name", presets())
def test_a_machine_is_drawn(run, name):
    result = run("machines", name)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name}: ")
    for mesh in load(name).mesh_ids:
        assert f"mesh {mesh}" in result.stdout


def test_the_chain_is_drawn_in_its_order(run):
    text = run("machines", "ktpu-v13p").stdout
    places = [text.index(f"mesh {mesh}") for mesh in (0, 1, 3, 2)]
    assert places == sorted(places)


@pytest.mark.parametrize("name", presets())
def test_toml_and_json_give_the_machine_back(run, name, tmp_path):
    toml = run("machines", name, "--toml").stdout
    assert loads(toml) == load(name)
    assert from_json(run("machines", name, "--json").stdout) == load(name)
    mine = tmp_path / "mine.toml"
    mine.write_text(toml.replace(f'name = "{name}"', 'name = "mine"'))
    result = run("machines", str(mine))
    assert (result.exit_code, result.stdout.split(":")[0]) == (0, "mine")
    assert loads(run("machines", str(mine), "--toml").stdout) == load(mine)


def test_an_unknown_machine_is_refused(run):
    result = run("machines", "ktpu-v13")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        'error: no machine and no file is called "ktpu-v13" (did you mean "ktpu-v13p"?). Machines: grid-2x4x4, '
        "grid-8x8, ktpu-1, ktpu-v13p, ktpu-v13p-published. A file of your own is named by its path, such as "
        "./mine.toml\n"
    )


def test_a_file_that_is_no_machine_is_refused(run, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "bad"\nsummary =\n')
    result = run("machines", str(bad))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {bad}:2: not TOML: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--toml"],
            "--toml and --json print one machine: name it, as in `meshwright machines ktpu-v13p --toml`",
        ),
        (["ktpu-1", "--toml", "--json"], "--toml and --json exclude each other: give one of them"),
    ],
)
def test_options_that_do_not_go_together(run, arguments, message):
    result = run("machines", *arguments)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
