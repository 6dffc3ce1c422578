"""Neighbours, paths and chain order: the machines known by name, and random ones against graph searches."""

from itertools import pairwise, permutations

import pytest
import rustworkx as rx
from hypothesis import given
from hypothesis import strategies as st
from machine_samples import chains, fabrics, grids, linked

from meshwright.errors import MachineError
from meshwright.machine import load

CARD = load("ktpu-v13p")


def graph_of(machine):
    graph = rx.PyGraph()
    index = {mesh.id: graph.add_node(mesh.id) for mesh in machine.meshes}
    for link in machine.links:
        a, b = link.between
        graph.add_edge(index[a], index[b], 1.0)
    return graph, index


def refusal(call, *args):
    with pytest.raises(MachineError) as caught:
        call(*args)
    return str(caught.value)


def test_the_card_is_a_chain_0_1_3_2():
    assert CARD.mesh_ids == (0, 1, 3, 2)
    assert [CARD.neighbours(mesh) for mesh in (0, 1, 3, 2)] == [(1,), (0, 3), (1, 2), (3,)]
    assert CARD.mesh_hops(0, 2) == 3
    assert CARD.path(2, 0) == (2, 3, 1, 0)
    assert CARD.chain_order([2, 3]) == (3, 2)
    assert CARD.chain_order([2, 0, 3, 1]) == (0, 1, 3, 2)
    assert CARD.chain_order([1]) == (1,)


def test_what_reaches_where():
    assert CARD.reaches(0, 2) and CARD.reaches(0, 1, "unit_data") and CARD.reaches(1, 1, "read")
    assert not CARD.reaches(0, 1, "read")
    line = linked([0, 1, 2], [(0, 1), (1, 2)], topology="chain")
    assert line.reaches(0, 1) and not line.reaches(0, 2), "its links pass nothing on"


def test_a_gap_names_the_missing_link_and_what_would_do():
    assert refusal(CARD.chain_order, [0, 2]) == (
        "chain_order: meshes 0, 2 of ktpu-v13p are not joined in a line: no link joins 0 and 2. With 1, 3 as well "
        "the way is 0, 1, 3, 2; or leave out 2"
    )
    assert refusal(CARD.chain_order, [2, 1, 0]) == (
        "chain_order: meshes 2, 1, 0 of ktpu-v13p are not joined in a line: no link joins 1 and 2. With 3 as well "
        "the way is 1, 3, 2; or leave out 2"
    )
    broken = CARD.without_mesh(3)
    assert broken.mesh_ids == (0, 1, 2)
    assert refusal(broken.chain_order, [1, 2]) == (
        "chain_order: meshes 1, 2 of ktpu-v13p without mesh 3 are not joined in a line: no links lead from mesh 1 "
        "to mesh 2. Leave one of them out"
    )
    assert refusal(broken.mesh_hops, 0, 2) == "ktpu-v13p without mesh 3: no links lead from mesh 0 to mesh 2"


def test_a_2_by_2_grid_of_meshes_is_not_a_line_of_four():
    at = {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)}
    grid = linked([0, 1, 2, 3], [(0, 1), (2, 3), (0, 2), (1, 3)], topology="grid2d", at=at)
    assert refusal(grid.chain_order, [0, 1, 2, 3]) == (
        "chain_order: meshes 0, 1, 2, 3 of sample are not a line but a ring, and as written no link joins 1 and 2. "
        "Say where it is cut: 0, 1, 3, 2"
    )
    assert grid.chain_order([0, 1, 3, 2]) == (0, 1, 3, 2)
    assert grid.chain_order([3, 0, 1]) == (0, 1, 3)


def test_a_fork_names_the_mesh():
    at = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (1, 1)}
    grid = linked([0, 1, 2, 3], [(0, 1), (1, 2), (1, 3)], topology="grid2d", at=at)
    assert refusal(grid.chain_order, [0, 1, 2, 3]) == (
        "chain_order: meshes 0, 1, 2, 3 of sample are not a line: 1 forks to 0, 2, 3, and as written no link joins "
        "2 and 3. Name meshes in an order in which each is joined to the next"
    )


def test_no_mesh_twice_none_or_unknown():
    assert refusal(CARD.chain_order, []) == "chain_order: no meshes given; name one at least"
    assert refusal(CARD.chain_order, [0, 1, 0]) == "chain_order: mesh 0 is named twice in 0, 1, 0"
    assert refusal(CARD.chain_order, [7]) == "ktpu-v13p has no mesh 7; its meshes are 0, 1, 3, 2"


def test_links_are_found_both_ways():
    link = CARD.link(1, 0)
    assert link is CARD.link(0, 1)
    assert CARD.link_kind(link).name == "interlink"
    assert CARD.link_bytes_per_s(link) == 3.2e9
    assert refusal(CARD.link, 0, 2) == "ktpu-v13p: no link joins 0 and 2; the way between them is 0, 1, 3, 2"
    assert refusal(CARD.link, 0, 0) == "ktpu-v13p: no link joins 0 and 0, and none lead from one to the other"


def test_without_a_mesh_a_ring_opens_and_two_meshes_become_one():
    ring = linked([0, 1, 2], [(0, 1), (1, 2), (2, 0)], topology="ring")
    assert ring.without_mesh(1).topology == "chain"
    alone = ring.without_mesh(1).without_mesh(0)
    assert (alone.topology, alone.mesh_ids, alone.links) == ("one", (2,), ())
    assert refusal(alone.without_mesh, 2).endswith("has no mesh but 2; a machine has one at least")


@given(fabrics)
def test_hops_and_paths_are_the_shortest(machine):
    graph, index = graph_of(machine)
    lengths = rx.distance_matrix(graph, null_value=-1)
    for a, b in permutations(machine.mesh_ids, 2):
        length = int(lengths[index[a], index[b]])
        if length < 0:
            assert refusal(machine.path, a, b) == f"sample: no links lead from mesh {a} to mesh {b}"
            assert not machine.reaches(a, b)
            continue
        way = machine.path(a, b)
        assert machine.mesh_hops(a, b) == length == len(way) - 1
        assert (way[0], way[-1]) == (a, b)
        assert all(y in machine.neighbours(x) for x, y in pairwise(way))
        assert way == machine.path(a, b)


@given(fabrics)
def test_neighbours_are_mutual_and_as_linked(machine):
    assert {frozenset(link.between) for link in machine.links} == {
        frozenset((a, b)) for a in machine.mesh_ids for b in machine.neighbours(a)
    }


@given(chains(), st.data())
def test_a_run_of_a_chain_comes_out_in_order_whatever_the_order_given(machine, data):
    ids = machine.mesh_ids
    assert sorted(ids) == sorted(mesh.id for mesh in machine.meshes)
    start = data.draw(st.integers(0, len(ids) - 1))
    stop = data.draw(st.integers(start + 1, len(ids)))
    run = ids[start:stop]
    mixed = data.draw(st.permutations(run))
    if all(b in machine.neighbours(a) for a, b in pairwise(run)):
        assert machine.chain_order(mixed) == run
    else:
        assert "are not joined in a line" in refusal(machine.chain_order, mixed)


@given(st.one_of(chains(), grids()), st.data())
def test_a_chain_order_is_the_given_meshes_each_joined_to_the_next(machine, data):
    chosen = data.draw(st.lists(st.sampled_from(machine.mesh_ids), min_size=1, unique=True))
    graph, index = graph_of(machine)
    part = graph.subgraph([index[mesh] for mesh in chosen])
    is_line = rx.is_connected(part) and part.num_edges() == len(chosen) - 1
    is_line = is_line and all(part.degree(i) <= 2 for i in part.node_indices())
    as_written = all(b in machine.neighbours(a) for a, b in pairwise(chosen))
    if is_line or as_written:
        order = machine.chain_order(chosen)
        assert sorted(order) == sorted(chosen)
        assert all(b in machine.neighbours(a) for a, b in pairwise(order))
    else:
        assert refusal(machine.chain_order, chosen).startswith("chain_order: meshes ")
