import torch

from neural_complexity.seeding import seeded, stream


def draw(*key: str | int) -> torch.Tensor:
    return torch.rand(4, generator=stream(*key))  # type: ignore[arg-type]


def test_a_stream_depends_on_seed_and_name_alone() -> None:
    first = draw(0, "tasks", 3)
    torch.rand(100)
    assert torch.equal(first, draw(0, "tasks", 3))


def test_other_names_and_seeds_give_other_draws() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", "1"), (-1, "a")]
    draws = {tuple(draw(*key).tolist()) for key in keys}
    assert len(draws) == len(keys)


def test_seeded_modules_depend_on_the_names_alone_and_leave_no_trace() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    drawn = []
    for names in (("a",), ("a",), ("b",)):
        with seeded(0, *names):
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], torch.rand(4, generator=stream(0, "a")))
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.rand(2), expected)
