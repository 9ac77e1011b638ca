from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from neural_complexity.experiments.base.random_search import (
    PAPER_SETTING,
    SEARCHED,
    draw_settings,
    falls_behind,
)
from neural_complexity.experiments.search import PRESETS
from neural_complexity.meta.trainer import Status


def scores(*r2: float) -> list[Status]:
    return [Status(i, 10, 0, 0, 0.0, 0.0, value) for i, value in enumerate(r2, start=1)]


def test_the_median_stopping_rule() -> None:
    earlier = [scores(0.0, 0.2, 0.4), scores(0.2, 0.6, 0.8), scores(0.4, 0.8, 0.9)]
    behind = partial(falls_behind, grace=0)
    # After two iterations their running means are 0.1, 0.4 and 0.6.
    assert behind(scores(0.3, 0.39), earlier)
    assert not behind(scores(0.3, 0.4), earlier)
    assert not behind(scores(0.41, 0.0), earlier)  # the best counts, not the latest
    assert not behind(scores(-1.0, -2.0), [])
    # Who stopped before votes with what it had: the means are 0.1 and 0.7, their median 0.4.
    gave_up = [scores(0.1, 0.1), scores(0.4, 0.8, 0.9)]
    assert behind(scores(0.2, 0.3, 0.39), gave_up)
    assert not behind(scores(0.2, 0.3, 0.41), gave_up)
    # Scores that are no numbers are the worst.
    assert behind(scores(float("nan"), float("nan")), earlier)
    assert not behind(scores(-5.0), [scores(float("nan")), scores(float("-inf"))])


def test_nobody_is_judged_within_the_grace_period_nor_by_it() -> None:
    earlier = [scores(0.0, 0.8, 1.0)]
    assert not falls_behind(scores(-1.0), earlier, grace=1)
    assert falls_behind(scores(-1.0, 0.79), earlier, grace=1)  # the mean of 0.8 alone
    assert not falls_behind(scores(-1.0, 0.81), earlier, grace=1)
    assert falls_behind(scores(-1.0, 0.81, 0.89), earlier, grace=1)  # of 0.8 and 1.0
    assert not falls_behind(scores(0.85, 0.0), earlier, grace=1.5)  # a trial's own best is any


def test_settings_are_drawn_from_the_ranges_none_twice_and_each_for_itself() -> None:
    config = replace(PRESETS["smoke"](), trials=32)  # all there are
    settings = draw_settings(config)
    assert len({tuple(setting.items()) for setting in settings}) == 32
    for setting in settings:
        assert tuple(setting) == SEARCHED
        assert all(value in getattr(config, name) for name, value in setting.items())
    assert draw_settings(replace(config, trials=7)) == settings[:7]
    assert draw_settings(replace(config, seed=1)) != settings


def test_every_choice_is_drawn_about_equally_often() -> None:
    settings = draw_settings(replace(PRESETS["paper"](), trials=288))  # half of all
    for name in SEARCHED:
        choices = getattr(PRESETS["paper"](), name)
        for choice in choices:
            share = sum(setting[name] == choice for setting in settings) / 288
            assert share == pytest.approx(1 / len(choices), abs=0.1)


def test_the_defaults_are_the_papers_ranges() -> None:
    config = PRESETS["paper"]()
    assert config.encoder_layers == config.decoder_layers == (1, 2, 3)
    assert config.width == config.batch == (128, 256, 512, 1024)
    assert config.lr == (0.005, 0.001, 0.0005, 0.0001)
    assert all(value in getattr(config, name) for name, value in PAPER_SETTING.items())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"trials": 0}, "trials must be at least 1, got 0"),
        ({"trials": 33}, "trials must be at most 32, all settings, got 33"),
        ({"startup": 0}, "startup must be at least 1, got 0"),
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"grace": 1.5}, "grace must be from 0 to 1, got 1.5"),
        ({"head": "tail"}, "head must be posterior or direct, got tail"),
        ({"width": ()}, r"width must have choices, each once, got \(\)"),
        ({"lr": (0.1, 0.1)}, "lr must have choices, each once, got"),
        ({"lr": (0.1, -1.0)}, "lr must be positive, got -1.0"),
        ({"width": (32, 30)}, "width must be a multiple of heads, got width=30, heads=4"),
        ({"decoder_layers": (0,)}, "decoder_layers must be at least 1, got 0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(PRESETS["smoke"](), **change)
