"""Several modalities in one space: images with texts, videos with sounds, or all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.contract import Model
from vitrail.data.aligned import TEXT, AlignedTable, open_aligned, with_tokenizer
from vitrail.data.aligned_preparation import AlignedPreparation
from vitrail.data.loader import Policy
from vitrail.data.rng import make_rng
from vitrail.data.table import Source
from vitrail.data.text.tokenizer import (
    FILE,
    HF_CONFIG,
    Tokenizer,
    hf_config,
    learn_tokenizer,
    parse_tokenizer,
    read_tokenizer,
)
from vitrail.errors import DataError, RunError, SpecError
from vitrail.files import write_text
from vitrail.model.vatt import Vatt
from vitrail.objective.contrast import Contrast
from vitrail.report.alignment import write_alignment_report
from vitrail.run import directory
from vitrail.run.aligned_card import aligned_card
from vitrail.run.aligned_model import AlignedModel, prepare_parts
from vitrail.run.artefact import ALIGNMENT, WEIGHTS, mark_finished
from vitrail.run.calibrate import write_calibration
from vitrail.run.predictions import SUMMARY
from vitrail.training.closing import collect_facts, collect_skipped, make_result
from vitrail.training.evaluation import ProgressCallback
from vitrail.training.recipe.several.models import make_aligned_models
from vitrail.training.recipe.several.retrieval import (
    AlignedEvaluation,
    embed_table,
    evaluate_aligned,
    fit_calibration,
    score_directions,
)
from vitrail.training.recipe.several.settings import AlignSettings, WeightsSettings
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits, check_training_split
from vitrail.training.task import Outcome, Task, no_answer_cost
from vitrail.training.view import View
from vitrail.training.world import World
from vitrail.weights import tensor_files

NOUN = "samples"
PREPARES = True
MIN_SAMPLES = 4
answer_cost = no_answer_cost
model_factory = make_aligned_models


def open_source(data: str | Path, settings: CommonSettings) -> AlignedTable:
    """Open a table with several modalities, or class folders, whose names become texts."""
    table = open_aligned(data)
    if settings.on_error == "error":
        table.check_complete()
    return table


def check_request(settings: CommonSettings, new_model: Callable[..., Vatt]) -> None:
    """Refuse to lock a tower that is not there."""
    if _settings(settings).locked == "none":
        return
    if "image" not in new_model().TAKES:
        raise SpecError("there is no image tower to lock.", got="locked=image.", hint="locked=none.")
    if not isinstance(settings, WeightsSettings):
        raise SpecError(
            "an image tower without weights cannot be locked.", got="locked=image.", hint="--weights, or locked=none."
        )


def _settings(settings: CommonSettings) -> AlignSettings:
    assert isinstance(settings, AlignSettings)
    return settings


def make_splits(
    source: Source, settings: CommonSettings, view: View, world: World, *, path: Path | None = None, **_: Any
) -> Splits:
    """Take the splits of the data or hold out random samples, and learn the tokenizer from the training texts."""
    assert isinstance(source, AlignedTable)
    names = source.split_names
    check_training_split(source)
    train = source.split("train") if names else source
    if len(train) < MIN_SAMPLES:
        raise DataError(f"alignment needs at least {MIN_SAMPLES} samples.", got=f"{len(train)}.", hint="more samples.")
    test = source.split("test") if "test" in names else None
    note = "The data has its own validation split."
    if "val" in names:
        val = source.split("val")
    else:
        order = make_rng("split", seed=settings.seed, epoch=0).permutation(len(train))
        num = min(max(round(settings.val_share * len(train)), 2), len(train) - 2)
        note = f"{num:,} of {len(train):,} training samples were held out for validation."
        train, val = (train.only(sorted(rows.tolist())) for rows in (order[num:], order[:num]))
    assert isinstance(train, AlignedTable)
    tokenizer = _find_tokenizer(train, _settings(settings), world, path)
    return Splits(
        with_tokenizer(train, tokenizer),
        with_tokenizer(val, tokenizer),
        None if test is None else with_tokenizer(test, tokenizer),
        note,
    )


def _find_tokenizer(train: AlignedTable, settings: AlignSettings, world: World, run: Path | None) -> Tokenizer | None:
    """The tokenizer of a run that was interrupted, or a new one; None if there are no texts."""
    if TEXT not in train.modalities:
        return None

    def find() -> str:
        if run is not None and (run / FILE).is_file():
            return read_tokenizer(run / FILE).to_json()
        texts = [text for index in range(len(train)) for text in train.texts(index)]
        if not any(text.strip() for text in texts):
            raise DataError("there is no text to align with.", got="empty cells only.", hint="a text in every row.")
        return learn_tokenizer(settings.tokenizer, texts, vocab=settings.vocab).to_json()

    return parse_tokenizer(world.on_rank_zero(find))


def _tokenizer(task: Task) -> Tokenizer | None:
    assert isinstance(task.splits.train, AlignedTable)
    return task.splits.train.tokenizer


def new_model(task: Task) -> Model:
    """Create the requested model, for the tokens of the texts."""
    tokenizer, settings = _tokenizer(task), _settings(task.settings)
    if tokenizer is None:
        model = task.new_model()
    else:
        if task.world.is_rank_zero and not (task.run / FILE).is_file():
            write_text(tokenizer.to_json(), task.run / FILE, RunError)
        model = task.new_model(vocab=tokenizer.num_tokens, pad=tokenizer.pad, context=settings.context)
    if settings.locked == "image":
        assert isinstance(model, Vatt)
        model.towers["image"].requires_grad_(False)
    return model


def new_objective(task: Task, model: Model | None = None) -> Contrast:
    """Create the loss function for the pairs that the model compares."""
    assert isinstance(model, Vatt)
    spec, temperature = model.spec, _settings(task.settings).temperature
    return Contrast(outputs=spec.outputs, pairs=spec.pairs, text=spec.text, temperature=temperature, pad=spec.pad)


def preparation(task: Task, model: Model, *, training: bool) -> AlignedPreparation:
    """Each modality by its own preprocessing; for training, augmented."""
    settings = _settings(task.settings)
    augment = settings.augment if training else None
    parts = prepare_parts(model.about.inputs, training=training, augment=augment)
    train = task.splits.train
    assert isinstance(train, AlignedTable)
    num_texts = max((len(train.texts(index)) for index in range(len(train))), default=1) if training else 1
    return AlignedPreparation(
        parts=parts, tokenizer=train.tokenizer, context=settings.context, num_texts=max(1, num_texts)
    )


def finish(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Test the model in all directions, calibrate it, write the files of the run, and return its result."""
    model, settings = outcome.model, _settings(task.settings)
    assert isinstance(model, Vatt)
    tables = {"val": task.splits.val, "test": task.splits.test}
    answers = {split: embed_table(task, model, table) for split, table in tables.items() if table is not None}
    scores = {split: score_directions(model.spec, each) for split, each in answers.items()}
    calibration = fit_calibration(model.spec, answers["val"], settings.temperature)
    skipped = collect_skipped(task)
    result = make_result(task, recipe, outcome, scores, skipped)
    if task.world.is_rank_zero:
        tokenizer = _tokenizer(task)
        task.config["kind"], task.config["objective"] = ALIGNMENT, "contrast"
        spec = model.spec.model_dump(mode="json")
        task.config["model"] = {"name": model.about.name, "family": "vatt", "spec": spec}
        inputs = {name: each.model_dump(mode="json") for name, each in model.about.inputs.items()}
        task.config["prepare"] = {"name": "several", "inputs": inputs, "context": settings.context}
        directory.write_config(task.run, task.config)
        tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        tensor_files.write_tensors(tensors, task.run / WEIGHTS)
        write_calibration(task.run, calibration)
        if tokenizer is not None:
            directory.write_json(task.run / HF_CONFIG, hf_config(tokenizer, settings.context))
        num_params = sum(parameter.numel() for parameter in model.parameters())
        name = f"{model.about.name} for {', '.join(model.TAKES[:-1])} and {model.TAKES[-1]}"
        facts = collect_facts(task, model=name, num_params=num_params, notes=result["story"], skipped=skipped)
        facts |= {"modalities": list(model.TAKES), "shared": model.spec.shared, "levels": list(model.spec.levels)}
        write_text(aligned_card(facts, result), task.run / "README.md", RunError)
        directory.write_json(task.run / SUMMARY, {"facts": facts, "result": result})
        mark_finished(task.run, result)
    return {**result, "story": tuple(result["story"])}


def evaluate(
    opened: AlignedModel,
    data: str | Path,
    *,
    split: str | None,
    batch_size: int,
    policy: Policy,
    progress: ProgressCallback | None,
) -> AlignedEvaluation:
    """Retrieval in all directions on other data."""
    return evaluate_aligned(
        opened, open_aligned(data), split=split, batch_size=batch_size, policy=policy, progress=progress
    )


def write_report(path: Path, source: Source, *, model: Model | None = None) -> None:
    """Write the page of a run."""
    assert isinstance(source, AlignedTable)
    write_alignment_report(path, source)
