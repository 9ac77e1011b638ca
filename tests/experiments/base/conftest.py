import pytest

from neural_complexity.experiments.base.image_learners import load_ncs
from neural_complexity.experiments.base.one_dataset import (
    EmbeddedNC,
    ImageData,
    SingleNetworksConfig,
    load_data,
)
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.single import PRESETS
from smoke_runs import SmokeRuns

smoke = PRESETS["smoke"]


@pytest.fixture
def data() -> ImageData:
    return load_data(smoke())


@pytest.fixture
def ncs(smoke_runs: SmokeRuns) -> dict[Head, EmbeddedNC]:
    folder = str(smoke_runs("single").folder)
    return load_ncs(SingleNetworksConfig.like(smoke, networks=folder))[1]
