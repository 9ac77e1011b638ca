"""Deliberate bugs that tests must catch: leaks, dead letters, changed sizes, wrong signs."""

from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """A bug: in a file below `src/neural_complexity`, one text takes the place of another."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # what must fail, as arguments of pytest


LEAKS = "tests/test_leaks.py::test_what_is_reported_on_taught_chose_and_trained_nothing"
METHODS = "tests/test_leaks.py::test_every_method_gives_other_learners_than_every_other_one"
META_LEARN = "tests/test_leaks.py -k meta_learn"
SPLITS = "tests/test_leaks.py -k learners_of_splits"
PRESETS = "tests/test_golden.py::test_presets_are_what_they_were"
TINY = "tests/test_golden.py -k tiny"
ROWS = "tests/experiments/test_all.py::test_smoke_rows_are_what_they_were"
BASE = "experiments/base"

MUTANTS = [
    # What is reported on taught NC, chose something, or trained a learner.
    Mutant(
        "NC is meta-trained on test images, as many as before",
        f"{BASE}/one_dataset.py",
        "Splits(self.dataset, self.pool.cpu(),",
        "Splits(self.dataset, torch.cat([self.test, self.pool])[: len(self.pool)].cpu(),",
        f"{LEAKS}[single]",
    ),
    Mutant(
        "NC is meta-trained on the held-out images that it is scored on",
        f"{BASE}/one_dataset.py",
        "Splits(self.dataset, self.pool.cpu(),",
        "Splits(self.dataset, self.train[: len(self.pool)].cpu(),",
        f"{LEAKS}[single]",
    ),
    Mutant(
        "own gives NC the test points and their labels",
        "experiments/own.py",
        "*data[:2], config.budget",
        "*(np.concatenate(data[i::2]) for i in (0, 1)), config.budget",
        f"{LEAKS}[own]",
    ),
    Mutant(
        "own trains models on test points",
        "experiments/own.py",
        "        steps = 0\n",
        "        steps, X_tr, y_tr = 0, X_te, y_te\n",
        f"{ROWS}[own]",
    ),
    Mutant(
        "own gives the fair NC all points",
        "experiments/own.py",
        "_meta_learn(config, X[rows], y[rows], **fair)",
        "_meta_learn(config, X, y, **fair)",
        "tests/experiments/test_own.py -k fair_nc",
    ),
    Mutant(
        "bounds are scored on the learners that they are made of",
        "experiments/bounds.py",
        "errors[n * (K + 1) :], own[n * (K + 1) :]",
        "errors[: n * K], own[: n * K]",
        "tests/experiments/test_bounds.py -k no_calibration_set",
    ),
    Mutant(
        "digits of bounds are from the part that taught NC",
        f"{BASE}/shifted_learners.py",
        "        _, _, X, y = own_digits()\n",
        "        X, y, _, _ = own_digits()\n",
        f"{LEAKS}[bounds]",
    ),
    Mutant(
        "meta_learn chooses its checkpoint on the learners of its report",
        "meta/meta_learn.py",
        'run.learners("validation", plan.chosen_by, callback)',
        'run.learners("report", plan.chosen_by, callback)',
        META_LEARN,
    ),
    Mutant(
        "meta_learn reports on points that taught NC",
        "meta/meta_run.py",
        "for indices, size in ((splits.pool, m), (held_out, n))",
        "for indices, size in ((splits.pool, m), (splits.pool, n))",
        META_LEARN,
    ),
    Mutant(
        "meta_learn lets NC learn from all points",
        "meta/meta_run.py",
        "        own = replace(tasks, pool=pool,",
        "        own = replace(tasks, pool=order,",
        META_LEARN,
    ),
    Mutant(
        "meta_learn holds out no tasks",
        "meta/meta_run.py",
        "(TaskList(tasks[rows]) for rows in parts)",
        "(TaskList(tasks) for rows in parts)",
        META_LEARN,
    ),
    Mutant(
        "baselines are tuned on test images",
        f"{BASE}/tuning.py",
        "evaluation = data.task(data.pool[: config.judged], data.held, len(runs))\n",
        "evaluation = data.task(data.pool[: config.judged], data.test, len(runs))\n",
        f"{LEAKS}[single]",
    ),
    Mutant(
        "the CNN is trained on test images",
        "experiments/single.py",
        "        Points(data.train, dataset),\n"
        "        dataset.labels.to(config.device)[data.train],\n",
        "        Points(data.test, dataset),\n"
        "        dataset.labels.to(config.device)[data.test],\n",
        f"{LEAKS}[single]",
    ),
    Mutant(
        "early stopping goes by the test error",
        f"{BASE}/image_learners.py",
        "replace(trial, held=task, times=often)",
        "replace(trial, held=evaluation, times=often)",
        f"{LEAKS}[single]",
    ),
    Mutant(
        "learners of one dataset are trained on test images",
        f"{BASE}/image_learners.py",
        "        task = data.task(train, test, copies)\n",
        "        task = data.task(torch.cat([train, data.test]), test, copies)\n",
        f"{LEAKS}[single]",
    ),
    Mutant(
        "few-shot NCs are meta-trained on evaluation characters",
        f"{BASE}/few_shot_images.py",
        '        images = omniglot("background", folder=self.data or None).rotated()\n',
        '        images = omniglot("evaluation", folder=self.data or None).rotated()\n',
        f"{LEAKS}[omniglot]",
    ),
    Mutant(
        "NC is validated on the tasks that are reported on",
        f"{BASE}/training.py",
        'self.family.sample(tasks, stream(self.seed, "validation tasks"))',
        'self.family.sample(256, stream(self.seed, "evaluation tasks"))',  # as many as in smoke
        f"{LEAKS}[sinusoid]",
    ),
    # Methods that do nothing.
    Mutant(
        "L2 is not applied",
        f"{BASE}/one_dataset.py",
        '{"weight_decay": strength}',
        '{"weight_decay": 0.0}',
        f"{METHODS}[single]",
    ),
    Mutant(
        "SAM is not applied",
        f"{BASE}/one_dataset.py",
        'sharpness=strength if baseline == "sam" else 0.0',
        "sharpness=0.0",
        f"{METHODS}[single]",
    ),
    Mutant(
        "label smoothing is not applied",
        f"{BASE}/one_dataset.py",
        'loss=smoothed_cross_entropy(strength) if baseline == "smoothing" else cross_entropy',
        "loss=cross_entropy",
        f"{METHODS}[single]",
    ),
    Mutant(
        "mixup is not applied",
        f"{BASE}/one_dataset.py",
        'objective=mixup(cross_entropy, strength) if baseline == "mixup" else None',
        "objective=None",
        f"{METHODS}[single]",
    ),
    Mutant(
        "dropout is not applied",
        f"{BASE}/one_dataset.py",
        'dropout = strength if baseline == "dropout" else 0.0',
        "dropout = 0.0",
        f"{METHODS}[single]",
    ),
    Mutant(
        "MetaReg's weights are zero",
        "baselines/trained.py",
        "    return [weight.detach() for weight in weights]",
        "    return [torch.zeros_like(weight) for weight in weights]",
        f"{METHODS}[regularizers]",
    ),
    Mutant(
        "NC's weight is ignored",
        "regularizers/nc.py",
        "lambda _: known, weight=weight, floor=floor,",
        "lambda _: known, floor=floor,",
        f"{METHODS}[regularizers]",
    ),
    Mutant(
        "NC's weight is ignored for minibatches",
        "regularizers/nc.py",
        "    return weight * (gap if",
        "    return (gap if",
        f"{SPLITS}",
    ),
    Mutant(
        "inductive is transductive",
        "regularizers/nc.py",
        "        H_te = snapshot.H_te if X_unlabelled is None else h(X_unlabelled)",
        "        H_te = snapshot.H_te",
        f"{METHODS}[curves] tests/regularizers/test_nc.py",
    ),
    Mutant(
        "the safeguard is ignored",
        "regularizers/nc.py",
        "    if safeguard:\n",
        "    if False:\n",
        f"{ROWS}[harm]",
    ),
    Mutant(
        "sharpness-aware minimization is plain descent",
        "learners/fit.py",
        "        if learning.sharpness:\n",
        "        if False:\n",
        "tests/learners/test_fit.py",
    ),
    # How learners for the bank are trained.
    Mutant(
        "the floor is ignored in split collection",
        "meta/collect.py",
        "weight=self._weights(job), floor=self.floor)",
        "weight=self._weights(job), floor=None)",
        SPLITS,
    ),
    Mutant(
        "the spread of weights is ignored",
        "meta/collect.py",
        "        if self.spread_weights:\n",
        "        if False:\n",
        f"{SPLITS}",
    ),
    Mutant(
        "learners that diverged enter the bank",
        "learners/fit.py",
        "    return infinite | (losses > DIVERGED * losses[0])",
        "    return infinite",
        "tests/learners/test_fit.py tests/meta/test_collect.py",
    ),
    Mutant(
        "NC's weight does not rise",
        "meta/trainer.py",
        "        return min(1.0, iteration / ramp) if ramp else 1.0",
        "        return 1.0",
        TINY,
    ),
    # Seeds and sizes.
    Mutant(
        "every seed is given the same rows",
        "experiments/own.py",
        'stream(seed, "own rows")',
        'stream(0, "own rows")',
        f"{ROWS}[own]",
    ),
    Mutant(
        "every seed has the same characters",
        f"{BASE}/few_shot_images.py",
        'stream(config.seed, "evaluation tasks")',
        'stream(0, "evaluation tasks")',
        "tests/test_leaks.py -k other_seeds",
    ),
    Mutant(
        "every seed has the same sinusoids",
        f"{BASE}/comparison.py",
        '    generator = stream(config.seed, "evaluation tasks")\n    return (family',
        '    generator = stream(0, "evaluation tasks")\n    return (family',
        "tests/test_leaks.py -k other_seeds",
    ),
    Mutant(
        "every seed deals the same images",
        f"{BASE}/one_dataset.py",
        'stream(config.seed, "deal", name)',
        'stream(0, "deal", name)',
        "tests/test_leaks.py -k other_seeds",
    ),
    Mutant(
        "the paper's learners of sinusoids are smaller",
        f"{BASE}/comparison.py",
        "    learner_width: Count = 40  #",
        "    learner_width: Count = 20  #",
        PRESETS,
    ),
    Mutant(
        "the paper's splits are smaller",
        f"{BASE}/one_dataset.py",
        "    split_train: Size = 40_000  #",
        "    split_train: Size = 4_000  #",
        PRESETS,
    ),
    Mutant(
        "the paper's ResNet is narrower",
        "experiments/single.py",
        '"learner_width": 64, "lr": 0.0001',
        '"learner_width": 16, "lr": 0.0001',
        PRESETS,
    ),
    # The measure itself.
    Mutant(
        "the gap has the wrong sign",
        "snapshot.py",
        "    return loss(snapshot.H_te, Y_te) - loss_tr",
        "    return loss_tr - loss(snapshot.H_te, Y_te)",
        "tests/test_snapshot.py",
    ),
    Mutant(
        "early stopping stops at the largest error",
        "experiments/single.py",
        "held.argmin(dim=0)",
        "held.argmax(dim=0)",
        f"{ROWS}[single]",
    ),
]
