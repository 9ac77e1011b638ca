import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.task import Task

sizes = st.integers(1, 4)


@given(B=sizes, M=sizes, N=sizes, D=sizes, C=sizes)
def test_sets_of_any_size_are_taken(B: int, M: int, N: int, D: int, C: int) -> None:
    task = Task(torch.ones(B, M, D), torch.ones(B, M, C), torch.ones(B, N, D), torch.ones(B, N, C))
    assert len(task) == B
    assert len(task[:1]) == 1
    assert task.to("cpu").X_te.shape == (B, N, D)


@given(shape=st.lists(st.integers(0, 3), min_size=0, max_size=4), field=st.integers(0, 3))
def test_any_other_shape_is_refused(shape: list[int], field: int) -> None:
    tensors = [torch.ones(5, 6, 1), torch.ones(5, 6, 1), torch.ones(5, 7, 1), torch.ones(5, 7, 1)]
    tensors[field] = torch.ones(shape)
    with pytest.raises(ValueError, match="must"):
        Task(*tensors)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"Y_tr": torch.ones(2, 4, 1)}, "Y_tr must agree with X_tr on the number of points"),
        ({"Y_te": torch.ones(3, 5, 1)}, "Y_te must agree with X_tr on the number of tasks"),
        ({"X_te": torch.ones(2, 0, 1)}, "X_te must not be empty"),
        (
            {"X_te": torch.ones(2, 5, 3)},
            "X_te must agree with X_tr on the number of features of X_",
        ),
        ({"X_tr": torch.ones(2, 3)}, "X_tr must be \\(tasks, points, features\\)"),
    ],
)
def test_the_message_names_what_is_wrong(change: dict[str, torch.Tensor], sentence: str) -> None:
    sets = {
        n: torch.ones(2, 3 if n.endswith("tr") else 5, 1) for n in ("X_tr", "Y_tr", "X_te", "Y_te")
    }
    with pytest.raises(ValueError, match=sentence):
        Task(**{**sets, **change})


def test_what_is_no_tensor_is_refused() -> None:
    ones = torch.ones(2, 3, 1)
    with pytest.raises(TypeError, match="Y_tr must be a torch.Tensor, got list"):
        Task(ones, [1.0], ones, ones)  # type: ignore[arg-type]


def test_tensors_without_values_in_rows_are_refused() -> None:
    ones = torch.ones(2, 3, 1)
    for odd in (ones.to("meta"), ones.to_sparse()):
        with pytest.raises(TypeError, match="X_tr must be a dense tensor that holds values, got a"):
            Task(odd, ones, ones, ones)
